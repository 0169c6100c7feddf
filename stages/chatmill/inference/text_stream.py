r"""Text from the ids of a reply, while they are generated.

A character comes out when its last byte is in, and control tokens never do. The model reads and writes escaped text
(chatmill.conversation); what comes out is unescaped: `<\|` is shown as `<|`.
"""

import codecs

from chatmill.conversation import CALL_END, CALL_START, OUTPUT_END, OUTPUT_START, Message, Part, unescape
from chatmill.template import Template
from chatmill.tokenizer.chat_tokenizer import ChatTokenizer

_OPENS = {CALL_START: "call", OUTPUT_START: "output", CALL_END: "text", OUTPUT_END: "text"}


class TextStream:
    """Bytes of escaped UTF-8 in, cut anywhere; the text out, as soon as it is whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._opened = False  # the last character was a `<`, after which a backslash is dropped

    def push(self, data: bytes, final: bool = False) -> str:
        """The text that is certain now; with `final`, an incomplete character becomes U+FFFD."""
        escaped = self._decoder.decode(data, final)
        if not escaped:
            return ""
        text = unescape("<" + escaped)[1:] if self._opened else unescape(escaped)
        self._opened = escaped.endswith("<")
        return text


class Reply:
    """A reply as it grows: push ids, show the text that comes back."""

    def __init__(self, tokenizer: ChatTokenizer, template: Template = "chatml") -> None:
        self._token_bytes, self._is_text = tokenizer.token_bytes, tokenizer.is_text
        self._opens = {tokenizer.special[name]: kind for name, kind in _OPENS.items()}
        self._lead = " " if template == "markers" else ""  # stands between the header and what is said
        self._parts: list[Part] = []
        self._kind, self._text, self._stream = "text", "", TextStream()

    def push(self, token: int) -> str:
        """The text to show now that `token` is in: nothing of calls and their outputs."""
        if self._is_text[token]:
            return self._take(self._stream.push(self._token_bytes[token]))
        kind = self._opens.get(token, self._kind)
        if kind == self._kind:
            return ""
        shown = self.finish()
        self._kind = kind
        return shown

    def finish(self) -> str:
        """The text to show at the end: what was held back of a character that is not whole."""
        shown = self._take(self._stream.push(b"", final=True))
        if self._text or self._kind != "text":
            self._parts.append(Part(self._kind, self._text))
        self._kind, self._text, self._stream = "text", "", TextStream()
        return shown

    @property
    def message(self) -> Message:
        """What was said, when it is finished."""
        return Message("assistant", tuple(self._parts))

    def _take(self, text: str) -> str:
        if self._kind != "text":
            self._text += text
            return ""
        if text:
            text, self._lead = text.removeprefix(self._lead), ""
        self._text += text
        return text
