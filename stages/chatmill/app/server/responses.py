"""The response bodies, in the format of OpenAI's API.

Extensions are `timings`, the `parts` of an answer that used a tool, `token_ids`, and the `id` of a token beside its
log probability.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal

from starlette.responses import Response

from chatmill.app.server.jobs import CompletionJob
from chatmill.conversation import Part
from chatmill.inference.sampler import TokenLogprob
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

JsonObject = dict[str, Any]


class CompletionBuilder:
    """Builds the completion object or the chunks of one request, of /v1/chat/completions or /v1/completions."""

    def __init__(self, kind: Literal["chat", "text"], name: str, model: str, created: int) -> None:
        self.kind = kind
        object_name = "chat.completion" if kind == "chat" else "text_completion"
        self._head = {"id": name, "created": created, "model": model}
        self._completion_fields = {"object": object_name, **self._head}
        self._chunk_fields = {"object": f"{object_name}.chunk" if kind == "chat" else object_name, **self._head}

    def chunk(
        self, index: int, parts: Sequence[Part], logprobs: JsonObject | None, more: JsonObject, *, first: bool = False
    ) -> JsonObject:
        """A chunk with the parts that were added to an answer."""
        text = plain_text(parts)
        choice: JsonObject = {"index": index, "logprobs": logprobs, "finish_reason": None, **more}
        if self.kind == "text":
            return {**self._chunk_fields, "choices": [{"text": text, **choice}]}
        delta: JsonObject = {"role": "assistant"} if first else {}
        delta |= {"content": text} if text or first else {}
        delta |= {"parts": parts_to_json(parts)} if any(part.kind != "text" for part in parts) else {}
        return {**self._chunk_fields, "choices": [{"delta": delta, **choice}]}

    def final_chunk(self, index: int, finish_reason: str, more: JsonObject) -> JsonObject:
        """The chunk that ends an answer."""
        empty: JsonObject = {"text": ""} if self.kind == "text" else {"delta": {}}
        choice = {"index": index, **empty, "logprobs": None, "finish_reason": finish_reason}
        return {**self._chunk_fields, "choices": [choice], **more}

    def usage_chunk(self, usage: JsonObject) -> JsonObject:
        """The chunk after the last, with the number of tokens."""
        return {**self._chunk_fields, "choices": [], "usage": usage}

    def choice(
        self, index: int, parts: Sequence[Part], logprobs: JsonObject | None, finish_reason: str, more: JsonObject
    ) -> JsonObject:
        choice: JsonObject = {"index": index, "logprobs": logprobs, "finish_reason": finish_reason, **more}
        if self.kind == "text":
            return {"text": plain_text(parts), **choice}
        message: JsonObject = {"role": "assistant", "content": plain_text(parts), "refusal": None}
        if any(part.kind != "text" for part in parts):
            message["parts"] = parts_to_json(parts)
        return {"message": message, **choice}

    def completion(self, choices: list[JsonObject], totals: JsonObject) -> JsonObject:
        return {**self._completion_fields, "choices": choices, **totals}


def plain_text(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if part.kind == "text")


def merge_texts(parts: Iterable[Part]) -> list[Part]:
    """The parts, with adjacent texts merged into one."""
    result: list[Part] = []
    for kind, group in groupby(parts, key=lambda part: part.kind):
        same_kind = list(group)
        result += [Part("text", "".join(part.text for part in same_kind))] if kind == "text" else same_kind
    return result


def parts_to_json(parts: Iterable[Part]) -> list[JsonObject]:
    return [{"kind": part.kind, "text": part.text} for part in parts]


def usage_of(jobs: Sequence[CompletionJob], prompts: Sequence[CompletionJob] | None = None) -> JsonObject:
    """The `usage` of answers: the tokens of the completions, and those of the prompts, each counted once."""
    prompts = jobs if prompts is None else prompts
    prompt = sum(len(job.prompt_ids) for job in prompts)
    generated = sum(len(job.generation.generated_ids) for job in jobs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(job.cached_tokens for job in prompts)},
    }


def timings_of(job: CompletionJob, context: int) -> JsonObject:
    """The `timings` of an answer: durations in milliseconds, token counts and rates."""
    times, generated = job.times, len(job.generation.generated_ids)
    first = times.first_token_at or times.ended_at
    seconds = times.ended_at - first
    return {
        "queue_ms": ms(times.started_at - times.submitted_at),
        "prompt_tokens": len(job.prompt_ids),
        "cached_tokens": job.cached_tokens,
        "prompt_ms": ms(first - times.started_at),
        "first_token_ms": ms(first - times.submitted_at),
        "completion_tokens": generated,
        "completion_ms": ms(seconds),
        "tokens_per_second": round((generated - 1) / seconds, 1) if seconds > 0 and generated > 1 else 0.0,
        "context": context,
    }


def ms(seconds: float) -> float:
    """Seconds as milliseconds, rounded to microseconds."""
    return round(1000 * seconds, 3)


def chat_logprobs(logprobs: Iterable[TokenLogprob], tokenizer: ChatTokenizer) -> JsonObject:
    """Log probabilities in the format of /v1/chat/completions."""
    return {
        "content": [
            {
                **_logprob_entry(one.token, one.logprob, tokenizer),
                "top_logprobs": [_logprob_entry(i, value, tokenizer) for i, value in one.top_logprobs],
            }
            for one in logprobs
        ],
        "refusal": None,
    }


def text_logprobs(logprobs: Iterable[TokenLogprob], tokenizer: ChatTokenizer, offset: int) -> JsonObject:
    """Log probabilities in the format of /v1/completions; `offset` counts the characters before them."""
    result: JsonObject = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for one in logprobs:
        text = _token_text(one.token, tokenizer)
        result["tokens"].append(text)
        result["token_logprobs"].append(one.logprob)
        result["top_logprobs"].append({_token_text(i, tokenizer): value for i, value in one.top_logprobs})
        result["text_offset"].append(offset)
        offset += len(text)
    return result


def token_entry(token: int, logprob: float | None, tokenizer: ChatTokenizer) -> JsonObject:
    """An entry of /tokens: a control token has its name; an id that the tokenizer lacks has no text."""
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


def json_response(values: JsonObject) -> Response:
    """A response of JSON; unlike Starlette's, it accepts lone surrogates."""
    return Response(to_json(values), media_type="application/json")


def to_json(values: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _logprob_entry(token: int, logprob: float, tokenizer: ChatTokenizer) -> JsonObject:
    content = tokenizer.token_bytes[token] if token < tokenizer.vocab_size else b""
    text = content.decode("utf-8", "replace")
    return {"token": text, "logprob": logprob, "bytes": list(content), "id": token}


def _token_text(token: int, tokenizer: ChatTokenizer) -> str:
    text: str = _logprob_entry(token, 0.0, tokenizer)["token"]
    return text
