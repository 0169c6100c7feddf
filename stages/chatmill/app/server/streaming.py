"""Sends a completion, in one response or as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server import request_models, responses
from chatmill.app.server.api_errors import to_api_error
from chatmill.app.server.cancellable_response import PING_SECONDS, send_events, send_response
from chatmill.app.server.jobs import AnswerDelta, CompletionJob, GenerationConfig, new_detokenizer
from chatmill.app.server.models import Model
from chatmill.app.server.prompts import Prompt
from chatmill.conversation.chatml import Part

FLUSH = 0.02  # seconds between two chunks, in which a fast model's tokens gather
Result = TypeVar("Result")


class CompletionWriter:
    """Decodes the ids of a job and sends its answer."""

    def __init__(
        self,
        model: Model,
        job: CompletionJob,
        config: GenerationConfig,
        parameters: request_models.GenerationRequest,
        prompt: Prompt,
        builder: responses.CompletionBuilder,
    ) -> None:
        self._model, self._job, self._parameters, self._prompt, self._builder = model, job, parameters, prompt, builder
        self._detokenizer = new_detokenizer(model.prompt_builder, config)
        self._text_offset = len(prompt.echo)

    async def send_full(self, send: Send) -> None:
        """Send the complete answer in one response."""
        deltas: list[AnswerDelta] = []
        while latest := await self._job.results.get_all():
            deltas += latest
            await self._job.results.wait_closed(PING_SECONDS)
        if self._job.error:
            raise to_api_error(self._job.error)
        parts = responses.merge_texts([*self._echo(), *self._parts(deltas), *self._final_parts()])
        more = {"token_ids": self._job.generation.generated_ids} if self._parameters.return_token_ids else {}
        totals = {"usage": responses.usage_of(self._job), "timings": self._timings()} | self._prompt_ids()
        values = self._builder.completion(parts, self._logprobs(deltas), self._job.finish_reason, more, totals)
        await send_response(send, json_response(values))

    async def stream(self, send: Send) -> None:
        """Send the answer as events; an error before the first event is sent as an error response."""
        events = self._events()
        first = await anext(events)
        if self._job.error and not self._job.generation.generated_ids:
            raise to_api_error(self._job.error)

        async def all_events() -> AsyncIterator[bytes | None]:
            yield first
            async for event in events:
                yield event

        await send_events(send, all_events())

    async def _events(self) -> AsyncIterator[bytes | None]:
        """Yield the chunks, None whenever a ping is due, and finally the error or the last chunk."""
        first, results = True, self._job.results
        while (deltas := await with_timeout(PING_SECONDS, results.get_all)) != []:
            if deltas is None:
                yield None
                continue
            yield self._chunk(deltas, self._parts(deltas), first=first)
            first = False
            await results.wait_closed(FLUSH)
        if self._job.error:
            yield to_api_error(self._job.error).as_json()
            return
        if first or (final_parts := self._final_parts()):
            yield self._chunk([], [] if first else final_parts, first=first)
        yield responses.to_json(self._builder.final_chunk(self._job.finish_reason, self._timings()))
        if self._parameters.includes_usage:
            yield responses.to_json(self._builder.usage_chunk(responses.usage_of(self._job)))

    def _chunk(self, deltas: list[AnswerDelta], parts: Iterable[Part], *, first: bool) -> bytes:
        parts = responses.merge_texts([*(self._echo() if first else ()), *parts])
        ids = [i for delta in deltas for i in delta.ids]
        more = {"token_ids": ids} if self._parameters.return_token_ids else {}
        chunk = self._builder.chunk(parts, self._logprobs(deltas), more, first=first)
        return responses.to_json(chunk | self._prompt_ids() if first else chunk)

    def _parts(self, deltas: list[AnswerDelta]) -> Iterator[Part]:
        """Decode ids: yield the parts that they add, texts and calls of tools, in order."""
        for token in (i for delta in deltas for i in delta.ids):
            before = len(self._detokenizer.parts)
            if text := self._detokenizer.push(token):
                yield Part("text", text)
            yield from (part for part in self._detokenizer.parts[before:] if part.kind != "text")

    def _final_parts(self) -> list[Part]:
        """The text held back because a character or a stop text was incomplete."""
        return [Part("text", text)] if (text := self._detokenizer.finish()) else []

    def _echo(self) -> list[Part]:
        return [Part("text", self._prompt.echo)] if self._prompt.echo else []

    def _prompt_ids(self) -> responses.JsonObject:
        return {"prompt_token_ids": self._job.prompt_ids} if self._parameters.return_token_ids else {}

    def _logprobs(self, deltas: list[AnswerDelta]) -> responses.JsonObject | None:
        logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
        if self._job.num_logprobs is None:
            return None
        if self._builder.kind == "chat":
            return responses.chat_logprobs(logprobs, self._model.loaded.tokenizer)
        result = responses.text_logprobs(logprobs, self._model.loaded.tokenizer, self._text_offset)
        self._text_offset += sum(map(len, result["tokens"]))
        return result

    def _timings(self) -> responses.JsonObject:
        return responses.timings_of(self._job, self._model.context, self._prompt.dropped_messages)


async def with_timeout(seconds: float, wait: Callable[[], Awaitable[Result]]) -> Result | None:
    """The awaited result; None after `seconds` without one."""
    try:
        async with asyncio.timeout(seconds):  # wait_for would miss a cancellation that comes with the result
            return await wait()
    except TimeoutError:
        return None


def json_response(values: responses.JsonObject) -> Response:
    """A response of JSON; unlike Starlette's, it accepts lone surrogates."""
    return Response(responses.to_json(values), media_type="application/json")
