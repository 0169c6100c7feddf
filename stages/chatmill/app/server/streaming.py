"""Sends completions, in one response or as server-sent events."""

from collections.abc import AsyncIterator, Sequence

from starlette.types import Send

from chatmill.app.server import request_models, responses
from chatmill.app.server.answers import Answer, Update, merged
from chatmill.app.server.api_errors import send_events, send_response, to_api_error
from chatmill.app.server.client_tools import ClientCall, ClientFunction
from chatmill.inference.sampler import TokenLogprob


class ChoiceWriter:
    """Formats one answer as a choice."""

    def __init__(
        self,
        answer: Answer,
        parameters: request_models.GenerationRequest,
        builder: responses.CompletionBuilder,
        function: ClientFunction | None,
    ) -> None:
        self.answer, self._parameters, self._builder = answer, parameters, builder
        self._text_offset, self._first = len(answer.prompt.echo), True
        self._call = ClientCall(function) if function else None

    async def choice(self) -> responses.JsonObject:
        """The choice of the complete answer."""
        parts, ids, logprobs = await self.answer.complete()
        all_parts = responses.merge_texts([*self.answer.prompt.echo_parts, *parts])
        more = {"token_ids": ids} if self._parameters.return_token_ids else {}
        return self._builder.choice(
            self.answer.index, all_parts, self._logprobs(logprobs), self._finish_reason, more, self._call
        )

    def chunk(self, update: Update) -> bytes:
        parts = responses.merge_texts([*(self.answer.prompt.echo_parts if self._first else ()), *update.parts])
        returned, first = self._parameters.return_token_ids, self._first
        more = {"token_ids": update.ids} if returned else {}
        logprobs, self._first = self._logprobs(update.logprobs), False
        chunk = self._builder.chunk(self.answer.index, parts, logprobs, more, call=self._call, first=first)
        prompt_ids = {"prompt_token_ids": self.answer.job.prompt_ids} if returned and first else {}
        return responses.to_json(chunk | prompt_ids)

    def final_chunks(self, more: responses.JsonObject) -> list[bytes]:
        """The last chunk, after a first one if there was none."""
        first = [self.chunk(Update([], [], []))] if self._first else []
        final = self._builder.final_chunk(self.answer.index, self._finish_reason, more)
        return [*first, responses.to_json(final)]

    @property
    def _finish_reason(self) -> str:
        return self.answer.job.finish_reason

    def _logprobs(self, logprobs: list[TokenLogprob]) -> responses.JsonObject | None:
        if self.answer.job.num_logprobs is None:
            return None
        tokenizer = self.answer.model.loaded.tokenizer
        if self._builder.kind == "chat":
            return responses.chat_logprobs(logprobs, tokenizer)
        result = responses.text_logprobs(logprobs, tokenizer, self._text_offset)
        self._text_offset += sum(map(len, result["tokens"]))
        return result


class CompletionWriter:
    """Sends the answers to a request, one choice each."""

    def __init__(
        self,
        answers: Sequence[Answer],
        parameters: request_models.GenerationRequest,
        builder: responses.CompletionBuilder,
        function: ClientFunction | None = None,
    ) -> None:
        self._answers, self._parameters, self._builder = answers, parameters, builder
        self._choices = [ChoiceWriter(answer, parameters, builder, function) for answer in answers]

    async def send_full(self, send: Send) -> None:
        """Send the complete answers in one response."""
        choices = [await choice.choice() for choice in self._choices]
        totals: responses.JsonObject = {"usage": self._usage()} | self._timings()
        if self._parameters.return_token_ids:
            totals["prompt_token_ids"] = self._answers[0].job.prompt_ids
        await send_response(send, responses.json_response(self._builder.completion(choices, totals)))

    async def stream(self, send: Send) -> None:
        """Send the answers as events; an error before the first event is sent as an error response."""
        await send_stream(send, self._answers, self._events())

    async def _events(self) -> AsyncIterator[bytes | None]:
        """Yield the chunks, None whenever a ping is due, and finally the error or the last chunk."""
        async for answer, update, ended in merged(self._answers):
            choice = self._choices[answer.index]
            if update:
                yield choice.chunk(update)
            elif not ended:
                yield None
            elif answer.job.error:
                yield to_api_error(answer.job.error).as_json()
                return
            else:
                for chunk in choice.final_chunks(self._timings()):
                    yield chunk
        if self._parameters.includes_usage:
            yield responses.to_json(self._builder.usage_chunk(self._usage()))

    def _usage(self) -> responses.JsonObject:
        prompts = self._answers[:: self._parameters.n or 1]
        return responses.usage_of([a.job for a in self._answers], [a.job for a in prompts])

    def _timings(self) -> responses.JsonObject:
        if len(self._answers) > 1:
            return {}
        answer = self._answers[0]
        dropped = answer.prompt.dropped_messages
        return {"timings": responses.timings_of(answer.job, answer.model.context, dropped)}


async def send_stream(send: Send, answers: Sequence[Answer], events: AsyncIterator[bytes | None]) -> None:
    """Send events; an error before the first token is raised, so that it becomes an error response."""
    first = await anext(events)
    for answer in answers:
        if answer.job.error and not answer.job.generation.generated_ids:
            raise to_api_error(answer.job.error)

    async def all_events() -> AsyncIterator[bytes | None]:
        yield first
        async for event in events:
            yield event

    await send_events(send, all_events())
