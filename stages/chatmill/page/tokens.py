"""Tokens as people can see them: a sentence cut up, and a conversation with its loss mask."""

from chatmill.conversation import Conversation
from chatmill.page.markup import Html, join, table, tag
from chatmill.template import Loss, Template, segments
from chatmill.tokenizer.chat_tokenizer import ChatTokenizer

MARKS = str.maketrans({" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"})
COUNTS = {Loss.TRAINED: "trained", Loss.PROMPT: "prompt", Loss.IGNORED: "ignored"}
COLORS = 5  # of the page's palette for tokens


def visible(token: bytes) -> str:
    """A token with its white space marked; one that is only a part of a character as its bytes."""
    try:
        return token.decode().translate(MARKS)
    except UnicodeDecodeError:
        return f"⟨{token.hex(' ')}⟩"


def sentence(text: str, tokenizer: ChatTokenizer) -> Html:
    """Each token of the text with its id and its bytes."""
    tokens = []
    for index, token in enumerate(tokenizer.encode(text)):
        content = tokenizer.token_bytes[token]
        details = tag("small", token), tag("small", content.hex(" "))
        tokens.append(tag("li", visible(content), *details, class_=f"token t{index % COLORS}"))
    return tag("ol", *tokens, class_="tokens", aria_label=f"{len(tokens)} tokens, each with its id and its bytes")


def masked(conversation: Conversation, tokenizer: ChatTokenizer, template: Template) -> Html:
    """A conversation's tokens, marked by how they count in training; the same as a table below."""
    ids, losses = tokenizer.encode_segments(segments(conversation, template))
    names = [visible(tokenizer.token_bytes[token]) for token in ids]
    tokens = [
        tag("span", name, class_=f"token {COUNTS[loss]}", title=f"{COUNTS[loss]}, id {token}")
        for name, token, loss in zip(names, ids, losses, strict=True)
    ]
    rows = [(name, token, COUNTS[loss]) for name, token, loss in zip(names, ids, losses, strict=True)]
    legend = [tag("span", name, class_=f"token {name}") for name in COUNTS.values()]
    as_table = table("Tokens of the conversation", ("token", "id", "loss"), rows)
    return join(
        [
            tag("p", "What the model is trained on: ", *legend, class_="note"),
            tag("div", *tokens, class_="tokens"),
            tag("details", tag("summary", "As a table"), as_table),
        ]
    )
