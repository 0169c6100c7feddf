"""What is answered, in the shapes of OpenAI's API.

Beside them stand, as extensions: `timings`, `parts` of an answer that used a tool, `token_ids`, and the `id` of a token
beside its probability.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal

from chatmill.app.server.jobs import Answer, Chance
from chatmill.conversation.chatml import Part
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

Values = dict[str, Any]


class Shape:
    """The results and chunks of one request, of /v1/chat/completions or of /v1/completions."""

    def __init__(self, kind: Literal["chat", "text"], name: str, model: str, created: int) -> None:
        self.kind = kind
        object_name = "chat.completion" if kind == "chat" else "text_completion"
        self._head = {"id": name, "created": created, "model": model}
        self._whole = {"object": object_name, **self._head}
        self._part = {"object": f"{object_name}.chunk" if kind == "chat" else object_name, **self._head}

    def chunk(self, parts: Sequence[Part], logprobs: Values | None, more: Values, *, first: bool = False) -> Values:
        """What is new of an answer."""
        text = said(parts)
        choice: Values = {"index": 0, "logprobs": logprobs, "finish_reason": None, **more}
        if self.kind == "text":
            return {**self._part, "choices": [{"text": text, **choice}]}
        delta: Values = {"role": "assistant"} if first else {}
        delta |= {"content": text} if text or first else {}
        delta |= {"parts": as_values(parts)} if any(part.kind != "text" for part in parts) else {}
        return {**self._part, "choices": [{"delta": delta, **choice}]}

    def last(self, finish_reason: str, timings: Values) -> Values:
        """The end of an answer."""
        empty: Values = {"text": ""} if self.kind == "text" else {"delta": {}}
        choice = {"index": 0, **empty, "logprobs": None, "finish_reason": finish_reason}
        return {**self._part, "choices": [choice], "timings": timings}

    def usage(self, usage: Values) -> Values:
        """How many tokens there were, after the end."""
        return {**self._part, "choices": [], "usage": usage}

    def whole(
        self, parts: Sequence[Part], logprobs: Values | None, finish_reason: str, more: Values, totals: Values
    ) -> Values:
        """A whole answer."""
        choice: Values = {"index": 0, "logprobs": logprobs, "finish_reason": finish_reason, **more}
        if self.kind == "text":
            return {**self._whole, "choices": [{"text": said(parts), **choice}], **totals}
        message: Values = {"role": "assistant", "content": said(parts), "refusal": None}
        message |= {"parts": as_values(parts)} if any(part.kind != "text" for part in parts) else {}
        return {**self._whole, "choices": [{"message": message, **choice}], **totals}


def said(parts: Iterable[Part]) -> str:
    """The text among the parts."""
    return "".join(part.text for part in parts if part.kind == "text")


def joined(parts: Iterable[Part]) -> list[Part]:
    """Parts of which no two texts adjoin."""
    result: list[Part] = []
    for kind, run in groupby(parts, key=lambda part: part.kind):
        alike = list(run)
        result += [Part("text", "".join(part.text for part in alike))] if kind == "text" else alike
    return result


def as_values(parts: Iterable[Part]) -> list[Values]:
    """Parts as JSON."""
    return [{"kind": part.kind, "text": part.text} for part in parts]


def usage_of(answer: Answer) -> Values:
    """How many tokens were read and generated."""
    prompt, generated = len(answer.ids), len(answer.generation.reply)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": answer.cached},
    }


def timings_of(answer: Answer, context: int, dropped: int) -> Values:
    """How long what took, in milliseconds."""
    times, generated = answer.times, len(answer.generation.reply)
    first = times.first or times.ended
    seconds = times.ended - first
    return {
        "queue_ms": ms(times.begun - times.asked),
        "prompt_tokens": len(answer.ids),
        "cached_tokens": answer.cached,
        "prompt_ms": ms(first - times.begun),
        "first_token_ms": ms(first - times.asked),
        "completion_tokens": generated,
        "completion_ms": ms(seconds),
        "tokens_per_second": round((generated - 1) / seconds, 1) if seconds > 0 and generated > 1 else 0.0,
        "context": context,
        "dropped_messages": dropped,
    }


def ms(seconds: float) -> float:
    """Milliseconds, to a thousandth."""
    return round(1000 * seconds, 3)


def chat_logprobs(chances: Iterable[Chance], tokenizer: ChatTokenizer) -> Values:
    """Probabilities as /v1/chat/completions tells them."""
    return {
        "content": [
            {
                **_token(one.token, one.logprob, tokenizer),
                "top_logprobs": [_token(i, value, tokenizer) for i, value in one.top],
            }
            for one in chances
        ],
        "refusal": None,
    }


def text_logprobs(chances: Iterable[Chance], tokenizer: ChatTokenizer, offset: int) -> Values:
    """Probabilities as /v1/completions tells them; `offset` is how many characters came before."""
    result: Values = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for one in chances:
        text = _text(one.token, tokenizer)
        result["tokens"].append(text)
        result["token_logprobs"].append(one.logprob)
        result["top_logprobs"].append({_text(i, tokenizer): value for i, value in one.top})
        result["text_offset"].append(offset)
        offset += len(text)
    return result


def shown_token(token: int, logprob: float | None, tokenizer: ChatTokenizer) -> Values:
    """A token as /tokens tells it: a control token by its name; ids that the tokenizer lacks are nothing."""
    known = token < tokenizer.vocab_size
    content = tokenizer.token_bytes[token] if known else b""
    is_text = known and bool(tokenizer.is_text[token])
    return {
        "id": token,
        "text": content.decode("utf-8", "replace") if is_text else "",
        "bytes": list(content) if is_text else [],
        "control": None if is_text else content.decode("utf-8", "replace") or f"{token}",
        "logprob": logprob,
    }


def to_json(values: Any) -> bytes:
    """The shortest JSON."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _token(token: int, logprob: float, tokenizer: ChatTokenizer) -> Values:
    content = tokenizer.token_bytes[token] if token < tokenizer.vocab_size else b""
    text = content.decode("utf-8", "replace")
    return {"token": text, "logprob": logprob, "bytes": list(content), "id": token}


def _text(token: int, tokenizer: ChatTokenizer) -> str:
    text: str = _token(token, 0.0, tokenizer)["token"]
    return text
