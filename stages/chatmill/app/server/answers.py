"""The answer to a request, while its job generates it: one response, or server-sent events, in OpenAI's format.

Extensions are `timings`, the `parts` of an answer that used a tool, `token_ids`, and the `id` of a token beside its
log probability.
"""

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from time import time
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Send

from chatmill.app.server.models import Model
from chatmill.app.server.requests import ChatRequest, GenerationRequest, Prompt
from chatmill.app.server.scheduler import CompletionJob, GenerationConfig, Job, Update
from chatmill.app.server.security import CancellableResponse, send_events, to_api_error
from chatmill.app.terminal.tokens import token_of
from chatmill.conversation import Part
from chatmill.inference.sampler import TokenLogprob

JsonObject = dict[str, Any]


def job_response(model: Model, job: Job, respond: Callable[[Send], Awaitable[Response | None]]) -> CancellableResponse:
    """A response while a job runs, which ends with it. Raises ApiError if the model's scheduler refuses it."""
    model.scheduler.submit(job)

    async def respond_and_cancel(send: Send) -> Response | None:
        try:
            return await respond(send)
        finally:
            job.cancelled = True

    return CancellableResponse(respond_and_cancel)


class Answer:
    """The answer to a request of /v1/chat/completions or /v1/completions: whole, or in chunks."""

    def __init__(
        self, model: Model, parameters: GenerationRequest, prompt: Prompt, config: GenerationConfig, time_limit: float
    ) -> None:
        self._model, self._prompt, self._streams = model, prompt, parameters.stream
        self._is_chat, self._returns_ids = isinstance(parameters, ChatRequest), parameters.return_token_ids
        self._includes_usage = parameters.stream_options and parameters.stream_options.include_usage
        self._job = CompletionJob(model.prompt_builder, prompt.ids, config, time_limit)
        name = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._head = {"id": name, "created": int(time()), "model": model.name}

    def response(self) -> Response:
        return job_response(self._model, self._job, self._respond)

    async def _respond(self, send: Send) -> Response | None:
        if self._streams:
            await send_events(send, self._events())
            return None
        update = _joined([update async for update in self._updates()])
        text, parts = _text(update.parts), _tool_parts(update.parts)
        message = {"role": "assistant", "content": text, "refusal": None, **parts}
        choice = {"message": message} if self._is_chat else {"text": text}
        choice |= self._common(update) | {"finish_reason": self._job.finish_reason}
        prompt_ids = {"prompt_token_ids": self._prompt.ids} if self._returns_ids else {}
        name = "chat.completion" if self._is_chat else "text_completion"
        totals = {"choices": [choice], "usage": self._usage(), "timings": self._timings(), **prompt_ids}
        return JSONResponse({"object": name, **self._head, **totals})

    async def _events(self) -> AsyncIterator[bytes]:
        """What is added to the answer, at least once, then its end. Raises ApiError if the job fails."""
        delta: JsonObject = {"role": "assistant", "content": ""}
        prompt_ids = {"prompt_token_ids": self._prompt.ids} if self._returns_ids else {}
        async for update in self._updates():
            text = _text(update.parts)
            delta |= ({"content": text} if text else {}) | _tool_parts(update.parts)
            added = {"delta": delta} if self._is_chat else {"text": text}
            yield self._event({"choices": [added | self._common(update)], **prompt_ids})
            delta, prompt_ids = {}, {}
        end: JsonObject = {"delta": {}} if self._is_chat else {"text": ""}
        end |= {"index": 0, "logprobs": None, "finish_reason": self._job.finish_reason}
        yield self._event({"choices": [end], "timings": self._timings()})
        if self._includes_usage:
            yield self._event({"choices": [], "usage": self._usage()})

    def _event(self, content: JsonObject) -> bytes:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        return json.dumps({"object": name, **self._head, **content}).encode()

    def _usage(self) -> JsonObject:
        prompt, generated = len(self._prompt.ids), len(self._job.generation.generated_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self._job.cached_tokens},
        }

    def _timings(self) -> JsonObject:
        """Durations in milliseconds, token counts and rates."""
        job = self._job
        generated = len(job.generation.generated_ids)
        first = job.first_token_at or job.ended_at
        seconds = job.ended_at - first
        return {
            "queue_ms": _milliseconds(job.started_at - job.submitted_at),
            "prompt_tokens": len(job.prompt_ids),
            "cached_tokens": job.cached_tokens,
            "prompt_ms": _milliseconds(first - job.started_at),
            "first_token_ms": _milliseconds(first - job.submitted_at),
            "completion_tokens": generated,
            "completion_ms": _milliseconds(seconds),
            "tokens_per_second": round((generated - 1) / seconds, 1) if seconds > 0 and generated > 1 else 0.0,
            "context": self._model.context,
            "dropped_messages": self._prompt.dropped_messages,
            "lost": self._prompt.lost,
        }

    async def _updates(self) -> AsyncIterator[Update]:
        """What is added to the answer; at least one update."""
        is_empty = True
        async for updates in self._job.results.batches():
            yield _joined(updates)
            is_empty = False
        if self._job.error:
            raise to_api_error(self._job.error)
        if is_empty:
            yield Update([], [], [])

    def _common(self, update: Update) -> JsonObject:
        token_ids = {"token_ids": update.ids} if self._returns_ids else {}
        logprobs = None if self._job.num_logprobs is None else self._logprobs(update.logprobs)
        return {"index": 0, "logprobs": logprobs, "finish_reason": None, **token_ids}

    def _logprobs(self, logprobs: list[TokenLogprob]) -> JsonObject:
        """In the format of the chats, or in that of /v1/completions."""
        entries = [
            [self._logprob(i, value) for i, value in [(one.token, one.logprob), *one.top_logprobs]] for one in logprobs
        ]
        if self._is_chat:
            return {"content": [own | {"top_logprobs": top} for own, *top in entries], "refusal": None}
        return {
            "tokens": [own["token"] for own, *_ in entries],
            "token_logprobs": [own["logprob"] for own, *_ in entries],
            "top_logprobs": [{one["token"]: one["logprob"] for one in top} for _, *top in entries],
        }

    def _logprob(self, token: int, logprob: float) -> JsonObject:
        content = token_of(token, self._model.loaded.tokenizer).content
        text = content.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(content), "id": token}


def _joined(updates: Sequence[Update]) -> Update:
    """The updates as one, with adjacent texts merged into one part."""
    parts: list[Part] = []
    for kind, group in groupby((part for update in updates for part in update.parts), key=lambda part: part.kind):
        same_kind = list(group)
        parts += [Part("text", _text(same_kind))] if kind == "text" else same_kind
    ids = [i for update in updates for i in update.ids]
    return Update(parts, ids, [logprob for update in updates for logprob in update.logprobs])


def _text(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if part.kind == "text")


def _tool_parts(parts: Sequence[Part]) -> JsonObject:
    """The `parts` of an answer; nothing if all are text."""
    if all(part.kind == "text" for part in parts):
        return {}
    return {"parts": [{"kind": part.kind, "text": part.text} for part in parts]}


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)
