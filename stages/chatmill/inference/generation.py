"""The generation loop. It knows token ids only.

Shapes: V vocabulary.
"""

import codecs
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from chatmill.conversation import CALL_END, CALL_START, OUTPUT_END, OUTPUT_START, Message, Part, unescape
from chatmill.engines.engine import Reader
from chatmill.inference.chat_template import CHATML, ChatTemplate
from chatmill.inference.sampler import Sampler
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model can call: `run` turns the ids between `start_id` and `end_id` into those of the output."""

    start_id: int
    end_id: int
    run: Callable[[list[int]], list[int]]

    def output(self, generated_ids: list[int]) -> list[int]:
        """The ids to append to a reply: the output of the call that has just ended, if one has."""
        if generated_ids[-1] != self.end_id or self.start_id not in generated_ids:
            return []
        start = len(generated_ids) - 1 - generated_ids[::-1].index(self.start_id)
        call = generated_ids[start + 1 : -1]
        return [] if self.end_id in call else self.run(call)


class Generation:
    """A reply as it grows. The caller runs the model on `pending` and passes logits to `step` until it is `done`."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        *,
        remaining_context: int,
        sampler: Sampler,
        stop_ids: Collection[int],
        max_tokens: int,
        tool: Tool | None = None,
    ) -> None:
        """`remaining_context` is how many tokens fit after the prompt."""
        self.pending = list(prompt_ids)  # ids that the model reads next
        self.generated_ids: list[int] = []
        self._sampler, self._stop_ids, self._tool = sampler, stop_ids, tool
        self._max_new_tokens = min(max_tokens, remaining_context)
        self.done = self._max_new_tokens <= 0

    def step(self, logits: np.ndarray, likeliest: int | None = None) -> list[int]:
        """The ids that follow: the one that Sampler.sample chooses, and after a call the tool's output."""
        chosen = self._sampler.sample(logits, self.generated_ids, likeliest)
        self.generated_ids.append(chosen)
        forced = self._tool.output(self.generated_ids) if self._tool is not None else []
        if chosen in self._stop_ids or len(self.generated_ids) + len(forced) > self._max_new_tokens:
            self.done = True
            return [chosen]
        self.generated_ids += forced
        self.pending = [chosen, *forced]
        self.done = len(self.generated_ids) >= self._max_new_tokens
        return [chosen, *forced]


def generate(
    engine: Reader,
    prompt_ids: Sequence[int],
    *,
    sampler: Sampler,
    stop_ids: Collection[int],
    max_tokens: int,
    tool: Tool | None = None,
) -> Iterator[int]:
    """Yield the ids that follow the prompt, including the tool's outputs, up to and including a stop id.

    It ends without a stop id after `max_tokens`, or where the context is full. The prompt continues what the engine's
    cache holds. The cache does not yet hold the last of the yielded ids.
    """
    remaining_context = engine.context - engine.length - len(prompt_ids)
    generation = Generation(
        prompt_ids,
        remaining_context=remaining_context,
        sampler=sampler,
        stop_ids=stop_ids,
        max_tokens=max_tokens,
        tool=tool,
    )
    while not generation.done:
        yield from generation.step(engine.append(generation.pending))


# Text from the ids of a reply, as they are generated.

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
