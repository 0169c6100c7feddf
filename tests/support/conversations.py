"""Strategies for conversations of any text, and of text that looks like control tokens."""

from hypothesis import strategies as st

from chatmill.conversation import CONTROL_TOKENS, Message, Part

HOSTILE = st.lists(st.sampled_from(["<", "|", "\\", ">", "im_end", *CONTROL_TOKENS, "\n", "user\n", "a"])).map("".join)
TEXT = st.one_of(st.text(), HOSTILE)


@st.composite
def assistant_parts(draw):
    parts = []
    for kind in draw(st.lists(st.sampled_from(["text", "call", "call+output"]), max_size=5)):
        if kind == "text" and not (parts and parts[-1].kind == "text"):
            parts.append(Part("text", draw(TEXT.filter(bool))))
        elif kind != "text":
            parts.append(Part("call", draw(TEXT)))
            if kind == "call+output":
                parts.append(Part("output", draw(TEXT)))
    return tuple(parts)


MESSAGES = st.one_of(
    st.builds(Message.from_text, st.sampled_from(["system", "user", "assistant"]), TEXT),
    st.builds(Message, st.just("assistant"), assistant_parts()),
)
