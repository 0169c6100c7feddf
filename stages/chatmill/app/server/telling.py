"""How an answer is told: whole, or as events while it grows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server import requests, shapes
from chatmill.app.server.errors import refusal_of
from chatmill.app.server.jobs import Answer, Piece, Wanted, reply_of
from chatmill.app.server.live import SILENCE, send_events, send_whole
from chatmill.app.server.models import Model
from chatmill.app.server.prompts import Prompt
from chatmill.conversation.chatml import Part

FLUSH = 0.02  # seconds between two chunks: a fast model's tokens go out together
Made = TypeVar("Made")


class Telling:
    """How an answer is told while it grows."""

    def __init__(
        self,
        model: Model,
        answer: Answer,
        wanted: Wanted,
        asked: requests.Generated,
        prompt: Prompt,
        shape: shapes.Shape,
    ) -> None:
        self._model, self._answer, self._asked, self._prompt, self._shape = model, answer, asked, prompt, shape
        self._reply = reply_of(model.interpreter, wanted)
        self._characters = len(prompt.echo)

    async def whole(self, send: Send) -> None:
        """Send all of it, when it is whole."""
        pieces: list[Piece] = []
        while made := await self._answer.outlet.take():
            pieces += made
            await self._answer.outlet.rest(SILENCE)
        if self._answer.error:
            raise refusal_of(self._answer.error)
        parts = shapes.joined([*self._echo(), *self._parts(pieces), *self._rest()])
        more = {"token_ids": self._answer.generation.reply} if self._asked.return_token_ids else {}
        totals = {"usage": shapes.usage_of(self._answer), "timings": self._timings()} | self._prompt_ids()
        values = self._shape.whole(parts, self._logprobs(pieces), self._answer.finish_reason, more, totals)
        await send_whole(send, reply(values))

    async def stream(self, send: Send) -> None:
        """Send it as events; what goes wrong before the first is an error's status."""
        events = self._events()
        first = await anext(events)
        if self._answer.error and not self._answer.generation.reply:
            raise refusal_of(self._answer.error)

        async def all_events() -> AsyncIterator[bytes | None]:
            yield first
            async for event in events:
                yield event

        await send_events(send, all_events())

    async def _events(self) -> AsyncIterator[bytes | None]:
        """Chunks, with None for each time of silence; the error that ended it, or the end."""
        first, outlet = True, self._answer.outlet
        while (pieces := await within(SILENCE, outlet.take)) != []:
            if pieces is None:
                yield None
                continue
            yield self._chunk(pieces, self._parts(pieces), first=first)
            first = False
            await outlet.rest(FLUSH)
        if self._answer.error:
            yield refusal_of(self._answer.error).raw()
            return
        if first or (rest := self._rest()):
            yield self._chunk([], [] if first else rest, first=first)
        yield shapes.to_json(self._shape.last(self._answer.finish_reason, self._timings()))
        if self._asked.includes_usage:
            yield shapes.to_json(self._shape.usage(shapes.usage_of(self._answer)))

    def _chunk(self, pieces: list[Piece], parts: Iterable[Part], *, first: bool) -> bytes:
        parts = shapes.joined([*(self._echo() if first else ()), *parts])
        ids = [i for piece in pieces for i in piece.ids]
        more = {"token_ids": ids} if self._asked.return_token_ids else {}
        chunk = self._shape.chunk(parts, self._logprobs(pieces), more, first=first)
        return shapes.to_json(chunk | self._prompt_ids() if first else chunk)

    def _parts(self, pieces: list[Piece]) -> Iterator[Part]:
        """What was said, and what tools did, in order."""
        for token in (i for piece in pieces for i in piece.ids):
            before = len(self._reply.parts)
            if shown := self._reply.push(token):
                yield Part("text", shown)
            yield from (part for part in self._reply.parts[before:] if part.kind != "text")

    def _rest(self) -> list[Part]:
        """What was held back of a character, or of a stop text, that is not whole."""
        return [Part("text", shown)] if (shown := self._reply.finish()) else []

    def _echo(self) -> list[Part]:
        return [Part("text", self._prompt.echo)] if self._prompt.echo else []

    def _prompt_ids(self) -> shapes.Values:
        return {"prompt_token_ids": self._answer.ids} if self._asked.return_token_ids else {}

    def _logprobs(self, pieces: list[Piece]) -> shapes.Values | None:
        chances = [chance for piece in pieces for chance in piece.chances]
        if self._answer.top is None:
            return None
        if self._shape.kind == "chat":
            return shapes.chat_logprobs(chances, self._model.loaded.tokenizer)
        result = shapes.text_logprobs(chances, self._model.loaded.tokenizer, self._characters)
        self._characters += sum(map(len, result["tokens"]))
        return result

    def _timings(self) -> shapes.Values:
        return shapes.timings_of(self._answer, self._model.context, self._prompt.dropped)


async def within(seconds: float, wait: Callable[[], Awaitable[Made]]) -> Made | None:
    """What comes within some time; None where nothing does."""
    try:
        async with asyncio.timeout(seconds):  # wait_for would miss a cancellation that comes with the result
            return await wait()
    except TimeoutError:
        return None


def reply(values: shapes.Values) -> Response:
    """JSON, in which any text may stand."""
    return Response(shapes.to_json(values), media_type="application/json")
