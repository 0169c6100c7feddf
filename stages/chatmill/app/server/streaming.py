"""How an answer is told: whole, or as events while it grows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server import request_models, responses
from chatmill.app.server.api_errors import to_api_error
from chatmill.app.server.cancellable_response import PING_SECONDS, send_events, send_response
from chatmill.app.server.jobs import AnswerDelta, CompletionJob, GenerationConfig, new_reply
from chatmill.app.server.models import Model
from chatmill.app.server.prompts import Prompt
from chatmill.conversation.chatml import Part

FLUSH = 0.02  # seconds between two chunks: a fast model's tokens go out together
Result = TypeVar("Result")


class CompletionWriter:
    """How an answer is told while it grows."""

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
        self._reply = new_reply(model.interpreter, config)
        self._text_offset = len(prompt.echo)

    async def send_full(self, send: Send) -> None:
        """Send all of it, when it is whole."""
        deltas: list[AnswerDelta] = []
        while made := await self._job.results.get_all():
            deltas += made
            await self._job.results.wait_closed(PING_SECONDS)
        if self._job.error:
            raise to_api_error(self._job.error)
        parts = responses.merge_texts([*self._echo(), *self._parts(deltas), *self._final_parts()])
        more = {"token_ids": self._job.generation.generated_ids} if self._parameters.return_token_ids else {}
        totals = {"usage": responses.usage_of(self._job), "timings": self._timings()} | self._prompt_ids()
        values = self._builder.completion(parts, self._logprobs(deltas), self._job.finish_reason, more, totals)
        await send_response(send, json_response(values))

    async def stream(self, send: Send) -> None:
        """Send it as events; what goes wrong before the first is an error's status."""
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
        """Chunks, with None for each time of silence; the error that ended it, or the end."""
        first, outlet = True, self._job.results
        while (deltas := await with_timeout(PING_SECONDS, outlet.get_all)) != []:
            if deltas is None:
                yield None
                continue
            yield self._chunk(deltas, self._parts(deltas), first=first)
            first = False
            await outlet.wait_closed(FLUSH)
        if self._job.error:
            yield to_api_error(self._job.error).as_json()
            return
        if first or (rest := self._final_parts()):
            yield self._chunk([], [] if first else rest, first=first)
        yield responses.to_json(self._builder.final_chunk(self._job.finish_reason, self._timings()))
        if self._parameters.includes_usage:
            yield responses.to_json(self._builder.usage_chunk(responses.usage_of(self._job)))

    def _chunk(self, deltas: list[AnswerDelta], parts: Iterable[Part], *, first: bool) -> bytes:
        parts = responses.merge_texts([*(self._echo() if first else ()), *parts])
        ids = [i for piece in deltas for i in piece.ids]
        more = {"token_ids": ids} if self._parameters.return_token_ids else {}
        chunk = self._builder.chunk(parts, self._logprobs(deltas), more, first=first)
        return responses.to_json(chunk | self._prompt_ids() if first else chunk)

    def _parts(self, deltas: list[AnswerDelta]) -> Iterator[Part]:
        """What was said, and what tools did, in order."""
        for token in (i for piece in deltas for i in piece.ids):
            before = len(self._reply.parts)
            if shown := self._reply.push(token):
                yield Part("text", shown)
            yield from (part for part in self._reply.parts[before:] if part.kind != "text")

    def _final_parts(self) -> list[Part]:
        """What was held back of a character, or of a stop text, that is not whole."""
        return [Part("text", shown)] if (shown := self._reply.finish()) else []

    def _echo(self) -> list[Part]:
        return [Part("text", self._prompt.echo)] if self._prompt.echo else []

    def _prompt_ids(self) -> responses.JsonObject:
        return {"prompt_token_ids": self._job.prompt_ids} if self._parameters.return_token_ids else {}

    def _logprobs(self, deltas: list[AnswerDelta]) -> responses.JsonObject | None:
        logprobs = [chance for piece in deltas for chance in piece.logprobs]
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
    """What comes within some time; None where nothing does."""
    try:
        async with asyncio.timeout(seconds):  # wait_for would miss a cancellation that comes with the result
            return await wait()
    except TimeoutError:
        return None


def json_response(values: responses.JsonObject) -> Response:
    """JSON, in which any text may stand."""
    return Response(responses.to_json(values), media_type="application/json")
