"""The response bodies, in the format of OpenAI's API.

Extensions are `timings`, the `parts` of an answer that used a tool, `token_ids`, and the `id` of a token beside its
log probability.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from starlette.responses import Response

from chatmill.app.server.jobs import CompletionJob
from chatmill.app.terminal.tokens import token_of
from chatmill.conversation import Part
from chatmill.inference.sampler import TokenLogprob
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

JsonObject = dict[str, Any]


def plain_text(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if part.kind == "text")


def merge_texts(parts: Iterable[Part]) -> list[Part]:
    """The parts, with adjacent texts merged into one."""
    result: list[Part] = []
    for kind, group in groupby(parts, key=lambda part: part.kind):
        same_kind = list(group)
        result += [Part("text", "".join(part.text for part in same_kind))] if kind == "text" else same_kind
    return result


def tool_parts(parts: Sequence[Part]) -> JsonObject:
    """The `parts` of an answer; nothing if all are text."""
    if all(part.kind == "text" for part in parts):
        return {}
    return {"parts": [{"kind": part.kind, "text": part.text} for part in parts]}


def usage_of(jobs: Sequence[CompletionJob], prompts: Sequence[CompletionJob]) -> JsonObject:
    """The `usage` of answers: the tokens of the completions, and those of the prompts, each counted once."""
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
    generated = len(job.generation.generated_ids)
    first = job.first_token_at or job.ended_at
    seconds = job.ended_at - first
    return {
        "queue_ms": ms(job.started_at - job.submitted_at),
        "prompt_tokens": len(job.prompt_ids),
        "cached_tokens": job.cached_tokens,
        "prompt_ms": ms(first - job.started_at),
        "first_token_ms": ms(first - job.submitted_at),
        "completion_tokens": generated,
        "completion_ms": ms(seconds),
        "tokens_per_second": round((generated - 1) / seconds, 1) if seconds > 0 and generated > 1 else 0.0,
        "context": context,
    }


def ms(seconds: float) -> float:
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
    known = token_of(token, tokenizer)
    name, content = (known.content, b"") if known.is_control else (b"", known.content)
    return {
        "id": token,
        "text": content.decode("utf-8", "replace"),
        "bytes": list(content),
        "control": (name.decode("utf-8", "replace") or f"{token}") if known.is_control else None,
        "logprob": logprob,
    }


def json_response(values: JsonObject) -> Response:
    """A response of JSON; unlike Starlette's, it accepts lone surrogates."""
    return Response(to_json(values), media_type="application/json")


def to_json(values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _logprob_entry(token: int, logprob: float, tokenizer: ChatTokenizer) -> JsonObject:
    known = token_of(token, tokenizer)
    return {"token": _token_text(token, tokenizer), "logprob": logprob, "bytes": list(known.content), "id": token}


def _token_text(token: int, tokenizer: ChatTokenizer) -> str:
    return token_of(token, tokenizer).content.decode("utf-8", "replace")
