r"""Text from the ids of a reply, as they are generated.

A character is returned once its last byte has arrived; control tokens are never returned. The model reads and writes
escaped text (chatmill.conversation.chatml), which is returned unescaped: `<\|` as `<|`.
"""

import codecs
from collections.abc import Sequence
from typing import Literal

from chatmill.conversation.chatml import CALL_END, CALL_START, OUTPUT_END, OUTPUT_START, Message, Part, unescape
from chatmill.inference.chat_template import CHATML, ChatTemplate
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

PartKind = Literal["text", "call", "output"]
_PART_KINDS: dict[str, PartKind] = {CALL_START: "call", OUTPUT_START: "output", CALL_END: "text", OUTPUT_END: "text"}


class Utf8StreamDecoder:
    """Decodes UTF-8 that arrives in chunks cut anywhere, and unescapes it where it is escaped."""

    def __init__(self, *, escaped: bool = True) -> None:
        self._escaped = escaped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._opened = False  # the last character was a `<`, after which a backslash is dropped

    def decode(self, data: bytes, final: bool = False) -> str:
        """The text that is certain now; with `final`, an incomplete character becomes U+FFFD."""
        escaped = self._decoder.decode(data, final)
        if not escaped or not self._escaped:
            return escaped
        text = unescape("<" + escaped)[1:] if self._opened else unescape(escaped)
        self._opened = escaped.endswith("<")
        return text


class StopSequences:
    """Passes text on in chunks, up to the first stop text. `matched` says that one was found."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop, self._held = [text for text in stop if text], ""
        self.matched = False

    def push(self, text: str, final: bool = False) -> str:
        """The text that is certain now; a possible beginning of a stop text is held back until `final`."""
        if not self._stop:
            return text
        text = self._held + text
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        self.matched = bool(places)
        shown = min(places) if places else len(text) if final else self._certain(text)
        self._held = "" if places else text[shown:]
        return text[:shown]

    def _certain(self, text: str) -> int:
        longest = max(map(len, self._stop))
        for place in range(max(0, len(text) - longest + 1), len(text)):
            if any(stop.startswith(text[place:]) for stop in self._stop):
                return place
        return len(text)


class IncrementalDetokenizer:
    """A reply as it grows: `push` takes an id and returns text to show, until it has `stopped` at a stop text."""

    def __init__(self, tokenizer: ChatTokenizer, template: ChatTemplate = CHATML, stop: Sequence[str] = ()) -> None:
        self._token_bytes, self._is_text = tokenizer.token_bytes, tokenizer.is_text
        special = tokenizer.special
        self._part_kinds = {special[name]: kind for name, kind in _PART_KINDS.items() if name in special}
        self._escaped, self.answer_prefix = template.escapes, template.answer_prefix
        self._stop = StopSequences([*template.stop, *stop])
        self.parts: list[Part] = []  # the finished ones
        self.part_kind: PartKind = "text"  # of the part that grows
        self._text, self._stream = "", Utf8StreamDecoder(escaped=self._escaped)

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found."""
        return self._stop.matched

    def push(self, token: int) -> str:
        """The text to show after this token; calls and their outputs are not shown."""
        if self._is_text[token]:
            return self._add_text(self._stream.decode(self._token_bytes[token]))
        kind = self._part_kinds.get(token, self.part_kind)
        if kind == self.part_kind:
            return ""
        shown = self.finish()
        self.part_kind = kind
        return shown

    def finish(self) -> str:
        """The text to show at the end: an incomplete character or stop text that was held back."""
        shown = self._add_text(self._stream.decode(b"", final=True), final=True)
        part = [Part(self.part_kind, self._text)] if self._text or self.part_kind != "text" else []
        stream = Utf8StreamDecoder(escaped=self._escaped)
        # in one statement, so that Ctrl-C finishes no part twice
        self.parts, self.part_kind, self._text, self._stream = [*self.parts, *part], "text", "", stream
        return shown

    @property
    def message(self) -> Message:
        """The reply as a message, once it is finished."""
        return Message("assistant", tuple(self.parts))

    def _add_text(self, text: str, final: bool = False) -> str:
        if self.part_kind != "text":
            self._text += text
            return ""
        if self.stopped:
            return ""
        if text:
            text, self.answer_prefix = text.removeprefix(self.answer_prefix), ""
        text = self._stop.push(text, final)
        self._text += text
        return text
