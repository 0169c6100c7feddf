"""Which token comes next, from the logits.

Shapes: V vocabulary.
"""

import codecs
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal, NamedTuple

import numpy as np

from chatmill.conversation import CALL_END, CALL_START, OUTPUT_END, OUTPUT_START, Message, Part, unescape
from chatmill.inference.chat_template import CHATML, ChatTemplate
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

LIKELY = 0.001  # relative to the likeliest token; few tokens are above it, and have nearly all of the probability
SMALLEST_FLOAT32 = float(np.finfo(np.float32).smallest_subnormal)  # the smallest probability that is not 0
MAX_PENALTY = 1000  # beyond it, logits overflow float32
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1e30  # temperatures are clipped to them, as float32 overflows beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose among tokens. The defaults always choose the likeliest."""

    temperature: float = 0.0  # 0: the likeliest token, whatever top_k, top_p and min_p are
    top_k: int = 0  # only the k likeliest; 0: all
    top_p: float = 1.0  # only the likeliest that together have this probability (arXiv:1904.09751)
    min_p: float = 0.0  # only those at least this likely, relative to the likeliest (arXiv:2407.01082)
    repetition_penalty: float = 1.0  # makes tokens of the reply less likely (arXiv:1909.05858)
    presence_penalty: float = 0.0  # subtracted from the logits of tokens in the reply
    frequency_penalty: float = 0.0  # the same, times their number of occurrences
    seed: int = 0

    def __post_init__(self) -> None:
        signed = f"-{MAX_PENALTY} to {MAX_PENALTY} (0 is none)"
        factor = f"{1 / MAX_PENALTY} to {MAX_PENALTY} (1 is none)"
        checks = (
            ("temperature", 0 <= self.temperature < inf, "0 or more"),
            ("top_k", self.top_k >= 0, "0 (all) or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("repetition_penalty", 1 / MAX_PENALTY <= self.repetition_penalty <= MAX_PENALTY, factor),
            ("presence_penalty", abs(self.presence_penalty) <= MAX_PENALTY, signed),
            ("frequency_penalty", abs(self.frequency_penalty) <= MAX_PENALTY, signed),
            ("seed", self.seed >= 0, "0 or more"),
        )
        for name, is_valid, expected in checks:
            if not is_valid:
                raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)}")


class Sampler:
    """Chooses among the allowed ids; of equal logits the lower id is first."""

    def __init__(self, allowed: np.ndarray, sampling: Sampling) -> None:
        """`allowed` (V,) is True for the ids that may be chosen."""
        self.sampling = sampling
        self._allowed, self._forbidden = allowed, np.flatnonzero(~allowed)
        self._temperature = min(max(sampling.temperature, MIN_TEMPERATURE), MAX_TEMPERATURE)
        self._random = np.random.default_rng(sampling.seed)

    def sample(self, logits: np.ndarray, generated_ids: Sequence[int] = (), likeliest: int | None = None) -> int:
        """The next id, from logits (V,) and the ids of the reply so far; `likeliest` is the argmax, where it is known.

        Raises ValueError where the largest logit is not finite.
        """
        sampling = self.sampling
        if sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty:
            logits, likeliest = penalized(logits, generated_ids, sampling), None
        if likeliest is None:
            likeliest = int(logits.argmax())
        if sampling.temperature or not self._allowed[likeliest]:
            logits = logits.copy()
            logits[self._forbidden] = -np.inf
            likeliest = int(logits.argmax())
        largest = logits[likeliest]
        if not isfinite(largest):
            raise ValueError(f"the model's largest logit is {largest} at token {1 + len(generated_ids)} of the answer")
        if sampling.temperature == 0:
            return likeliest
        if sampling.top_k or sampling.top_p < 1 or sampling.min_p:
            return self._draw(*self.candidates(logits, largest))
        return self._draw_of_all(self.weights(logits, largest))

    def weights(self, logits: np.ndarray, largest: float) -> np.ndarray:
        """Probabilities relative to that of the `largest` logit."""
        scaled = logits - largest
        scaled /= np.float32(self._temperature)
        return np.exp(scaled, out=scaled)

    def candidates(self, logits: np.ndarray, largest: float) -> tuple[list[int], list[float]]:
        """The ids that top_k, top_p and min_p leave, likeliest first, and their weights."""
        sampling, weights = self.sampling, self.weights(logits, largest)
        total = float(weights.sum())

        # The few likely ids mostly suffice, so that not all need to be sorted.
        ids = (weights >= LIKELY).nonzero()[0]
        if sampling.top_k:
            count = min(sampling.top_k, len(weights))
            if len(ids) < count:
                ids = (weights >= np.partition(weights, -count)[-count]).nonzero()[0]
        elif sampling.min_p < LIKELY and weights[ids].sum() < sampling.top_p * total:
            ids = weights.nonzero()[0]

        order = np.argsort(-weights[ids], kind="stable")[: sampling.top_k or None]
        ordered = weights[ids][order].tolist()
        limit = sampling.top_p * (sum(ordered) if sampling.top_k else total)
        count, before = 0, 0.0
        while count < len(ordered) and before < limit and ordered[count] >= max(sampling.min_p, SMALLEST_FLOAT32):
            before += ordered[count]
            count += 1
        return ids[order[:count]].tolist(), ordered[:count]

    def _draw(self, ids: list[int], weights: list[float]) -> int:
        """One of a few ids, drawn by weight; a loop over Python floats is faster here than NumPy."""
        point = self._random.random() * sum(weights)
        for i, weight in zip(ids, weights, strict=True):
            point -= weight
            if point < 0:
                return i
        return ids[0]  # where rounding left a remainder

    def _draw_of_all(self, weights: np.ndarray) -> int:
        """An id, drawn by weight; the few likely ones are tried first, as it is mostly one of them."""
        point = self._random.random() * float(weights.sum())
        ids = (weights >= LIKELY).nonzero()[0]
        for i, weight in zip(ids.tolist(), weights[ids].tolist(), strict=True):
            point -= weight
            if point < 0:
                return i
        weights[ids] = 0
        sums = weights.cumsum(dtype=np.float64)
        return int(sums.searchsorted(point, side="right")) if point < sums[-1] else int(ids[0])  # rounding


def penalized(logits: np.ndarray, generated_ids: Sequence[int], sampling: Sampling) -> np.ndarray:
    """Logits in which each id of the reply is less likely.

    The repetition penalty divides positive ones and multiplies negative ones; the others are subtracted (OpenAI's API).
    """
    ids, counts = np.unique(np.array(generated_ids, np.int64), return_counts=True)
    result, factor = logits.copy(), sampling.repetition_penalty
    result[ids] = np.where(logits[ids] > 0, logits[ids] / factor, logits[ids] * factor)
    result[ids] -= (sampling.presence_penalty + sampling.frequency_penalty * counts).astype(np.float32)
    return result


# How likely a model finds a token, and which tokens it finds likelier.

MIN_LOGPROB = -9999.0  # stands for the logarithm of 0, which JSON cannot express


class TokenLogprob(NamedTuple):
    token: int
    logprob: float
    top_logprobs: list[tuple[int, float]]


def token_logprob(logits: np.ndarray, token: int, num_logprobs: int) -> TokenLogprob:
    """The log probability of a token from logits (V,), and those of the `num_logprobs` likeliest tokens."""
    scaled = logits - logits.max()
    scaled -= np.log(np.exp(scaled, dtype=np.float64).sum()).astype(np.float32)
    num_logprobs = min(num_logprobs, len(scaled))
    likeliest: list[int] = np.argpartition(-scaled, num_logprobs - 1)[:num_logprobs].tolist() if num_logprobs else []
    pairs = sorted(((i, float(scaled[i])) for i in likeliest), key=lambda pair: (-pair[1], pair[0]))
    top_logprobs = [(i, max(value, MIN_LOGPROB)) for i, value in pairs]
    return TokenLogprob(token, max(float(scaled[token]), MIN_LOGPROB), top_logprobs)


# Generation, which knows token ids only.


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model can call: `run` turns the ids between `start_id` and `end_id` into those of the output."""

    start_id: int
    end_id: int
    run: Callable[[list[int]], list[int]]

    def output(self, generated_ids: list[int]) -> list[int]:
        """Where the last id ends a tool's call, the tool's output, as ids to append to the reply; else none."""
        if generated_ids[-1] != self.end_id or self.start_id not in generated_ids:
            return []
        last_start = len(generated_ids) - 1 - generated_ids[::-1].index(self.start_id)
        call = generated_ids[last_start + 1 : -1]
        return (
            [] if self.end_id in call else self.run(call)
        )  # an end within it: that call is over, and this is no other


class Generation:
    """A reply as it grows. The caller runs the model on `pending` and passes logits to `step` until it is `done`.

    It is done at a stop id, after `max_tokens`, or where the context is full. The model has then not read the last id.
    """

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
        if not self.matched and not final:
            last = range(max(0, len(text) - max(map(len, self._stop)) + 1), len(text))
            places = [place for place in last if any(stop.startswith(text[place:]) for stop in self._stop)]
        shown = min(places, default=len(text))
        self._held = "" if self.matched else text[shown:]
        return text[:shown]


class IncrementalDetokenizer:
    """A reply as it grows: `push` takes an id and returns text to show, until it has `stopped` at a stop text."""

    def __init__(self, tokenizer: ChatTokenizer, template: ChatTemplate = CHATML, stop: Sequence[str] = ()) -> None:
        self._token_bytes, self._is_text = tokenizer.token_bytes, tokenizer.is_written
        special = tokenizer.special
        self._part_kinds = {special[name]: kind for name, kind in _PART_KINDS.items() if name in special}
        self._escaped, self.answer_prefix = template.escapes, template.answer_prefix
        self._stop = StopSequences([*template.stop, *stop])
        self.parts: list[Part] = []  # the finished ones
        self.part_kind: PartKind = "text"  # of the part that grows
        self._text, self._stream = "", Utf8StreamDecoder(escaped=self._escaped)

    @property
    def stopped(self) -> bool:
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
