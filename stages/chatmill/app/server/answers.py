"""The answers to a request, while their jobs generate them: one response, or server-sent events, in OpenAI's format.

Extensions are `timings`, the `parts` of an answer that used a tool, `token_ids`, and the `id` of a token beside its
log probability.
"""

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from time import time
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Send

from chatmill.app.server.models import Model
from chatmill.app.server.requests import ChatRequest, GenerationRequest, Prompt
from chatmill.app.server.scheduler import CompletionJob, GenerationConfig, Job, Update
from chatmill.app.server.security import ApiError, CancellableResponse, send_events, to_api_error
from chatmill.app.terminal.tokens import token_of
from chatmill.conversation import Part
from chatmill.inference.sampler import TokenLogprob
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

JsonObject = dict[str, Any]


def job_response(
    model: Model, jobs: Sequence[Job], respond: Callable[[Send], Awaitable[Response | None]]
) -> CancellableResponse:
    """A response while jobs run, which end with it. Raises ApiError if the model's scheduler refuses them."""
    model.scheduler.submit(*jobs)

    async def respond_and_cancel(send: Send) -> Response | None:
        try:
            return await respond(send)
        finally:
            for job in jobs:
                job.cancelled = True

    return CancellableResponse(respond_and_cancel)


class Answers:
    """The answers to a request of /v1/chat/completions or /v1/completions, one choice each."""

    def __init__(
        self, model: Model, parameters: GenerationRequest, prompt: Prompt, config: GenerationConfig, time_limit: float
    ) -> None:
        """As many as are requested, with seeds that count up. Raises ApiError if they are more than the model takes."""
        count, most = parameters.n or 1, model.scheduler.max_jobs
        if count > most:
            raise ApiError(400, f"n: {count} answers: this server runs and queues at most {most}", param="n")
        self._parameters, self._model, self._prompt = parameters, model, prompt
        self._answers = []
        for number in range(count):
            sampling = replace(config.sampling, seed=(config.sampling.seed + number) % (1 << 64))
            own = config._replace(sampling=sampling, answer_prefix=prompt.answer_prefix)
            job = CompletionJob(model.prompt_builder, prompt.ids, own, time_limit)
            self._answers.append(_Answer(number, job, parameters, model.loaded.tokenizer))
        self._is_chat = isinstance(parameters, ChatRequest)
        name = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._head = {"id": name, "created": int(time()), "model": model.name}

    def response(self) -> Response:
        return job_response(self._model, [answer.job for answer in self._answers], self._respond)

    async def _respond(self, send: Send) -> Response | None:
        if self._parameters.stream:
            await send_events(send, self._events())
            return None
        choices = [await answer.choice() for answer in self._answers]
        totals: JsonObject = {"choices": choices, "usage": self._usage(), **self._timings()}
        if self._parameters.return_token_ids:
            totals["prompt_token_ids"] = self._prompt.ids
        name = "chat.completion" if self._is_chat else "text_completion"
        return JSONResponse({"object": name, **self._head, **totals})

    async def _events(self) -> AsyncIterator[bytes]:
        """The choices one after the other, though they are generated at the same time."""
        for answer in self._answers:
            async for chunk in answer.chunks():
                yield self._event(chunk)
            yield self._event({"choices": [answer.end()], **self._timings()})
        if self._parameters.includes_usage:
            yield self._event({"choices": [], "usage": self._usage()})

    def _event(self, content: JsonObject) -> bytes:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        return json.dumps({"object": name, **self._head, **content}).encode()

    def _usage(self) -> JsonObject:
        prompt = len(self._prompt.ids)
        generated = sum(len(answer.job.generation.generated_ids) for answer in self._answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self._answers[0].job.cached_tokens},
        }

    def _timings(self) -> JsonObject:
        """The `timings` of a single answer: durations in milliseconds, token counts and rates."""
        if len(self._answers) > 1:
            return {}
        job = self._answers[0].job
        generated = len(job.generation.generated_ids)
        first = job.first_token_at or job.ended_at
        seconds = job.ended_at - first
        timings = {
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
        return {"timings": timings}


class _Answer:
    """One answer, as a choice: whole, or in chunks."""

    def __init__(
        self, number: int, job: CompletionJob, parameters: GenerationRequest, tokenizer: ChatTokenizer
    ) -> None:
        self.job, self._number, self._tokenizer = job, number, tokenizer
        self._is_chat, self._returns_ids = isinstance(parameters, ChatRequest), parameters.return_token_ids

    async def choice(self) -> JsonObject:
        """The whole choice. Raises ApiError if the job fails."""
        update = _joined([update async for update in self._updates()])
        content = {"role": "assistant", "content": _text(update.parts), "refusal": None, **_tool_parts(update.parts)}
        own = {"message": content} if self._is_chat else {"text": _text(update.parts)}
        return {**own, **self._common(update), "finish_reason": self.job.finish_reason}

    async def chunks(self) -> AsyncIterator[JsonObject]:
        """What is added to the choice, at least once. Raises ApiError if the job fails."""
        delta: JsonObject = {"role": "assistant", "content": ""}
        prompt_ids = {"prompt_token_ids": self.job.prompt_ids} if self._returns_ids else {}
        async for update in self._updates():
            text = _text(update.parts)
            delta |= ({"content": text} if text else {}) | _tool_parts(update.parts)
            added = {"delta": delta} if self._is_chat else {"text": text}
            yield {"choices": [added | self._common(update)], **prompt_ids}
            delta, prompt_ids = {}, {}

    def end(self) -> JsonObject:
        empty: JsonObject = {"delta": {}} if self._is_chat else {"text": ""}
        return empty | {"index": self._number, "logprobs": None, "finish_reason": self.job.finish_reason}

    async def _updates(self) -> AsyncIterator[Update]:
        """What is added to the answer; at least one update."""
        is_empty = True
        async for updates in self.job.results.batches():
            yield _joined(updates)
            is_empty = False
        if self.job.error:
            raise to_api_error(self.job.error)
        if is_empty:
            yield Update([], [], [])

    def _common(self, update: Update) -> JsonObject:
        token_ids = {"token_ids": update.ids} if self._returns_ids else {}
        logprobs = None if self.job.num_logprobs is None else self._logprobs(update.logprobs)
        return {"index": self._number, "logprobs": logprobs, "finish_reason": None, **token_ids}

    def _logprobs(self, logprobs: list[TokenLogprob]) -> JsonObject:
        """In the format of the chats, or in that of /v1/completions."""
        entries = [
            [_logprob(i, value, self._tokenizer) for i, value in [(one.token, one.logprob), *one.top_logprobs]]
            for one in logprobs
        ]
        if self._is_chat:
            return {"content": [own | {"top_logprobs": top} for own, *top in entries], "refusal": None}
        return {
            "tokens": [own["token"] for own, *_ in entries],
            "token_logprobs": [own["logprob"] for own, *_ in entries],
            "top_logprobs": [{one["token"]: one["logprob"] for one in top} for _, *top in entries],
        }


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


def _logprob(token: int, logprob: float, tokenizer: ChatTokenizer) -> JsonObject:
    content = token_of(token, tokenizer).content
    return {"token": content.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(content), "id": token}
