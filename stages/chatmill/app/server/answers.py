"""The answers to a request, while their jobs generate them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server import requests, responses
from chatmill.app.server.jobs import AnswerDelta, CompletionJob, GenerationConfig, Job, new_detokenizer
from chatmill.app.server.models import Model, Models
from chatmill.app.server.prompts import Prompt
from chatmill.app.server.security import (
    PING_SECONDS,
    ApiError,
    CancellableResponse,
    QueueFull,
    SchedulerStopped,
    send_events,
    send_response,
    to_api_error,
)
from chatmill.conversation import Part
from chatmill.inference.sampler import TokenLogprob

FLUSH = 0.02  # seconds between two updates, in which a fast model's tokens gather
Result = TypeVar("Result")


class Update(NamedTuple):
    """What was added to an answer: parts, and the ids and log probabilities of which they were decoded."""

    parts: list[Part]
    ids: list[int]
    logprobs: list[TokenLogprob]


class Answer:
    """Decodes the ids of one job."""

    def __init__(
        self, model: Model, prompt: Prompt, config: GenerationConfig, time_limit: float, index: int = 0
    ) -> None:
        self.model, self.prompt, self.config, self.index = model, prompt, config, index
        self.job = CompletionJob(model.prompt_builder, prompt.ids, config, time_limit)
        self._detokenizer = new_detokenizer(model.prompt_builder, config)

    async def updates(self) -> AsyncIterator[Update | None]:
        """Yield what is added to the answer, and None whenever a ping is due."""
        results = self.job.results
        while (deltas := await with_timeout(PING_SECONDS, results.get_all)) != []:
            if deltas is None:
                yield None
                continue
            yield self._decode(deltas)
            await results.wait_closed(FLUSH)
        if not self.job.error and (parts := self._final_parts()):
            yield Update(parts, [], [])

    async def complete(self) -> Update:
        """The complete answer. Raises ApiError if the job fails."""
        deltas: list[AnswerDelta] = []
        while latest := await self.job.results.get_all():
            deltas += latest
            await self.job.results.wait_closed(PING_SECONDS)
        if self.job.error:
            raise to_api_error(self.job.error)
        parts, ids, logprobs = self._decode(deltas)
        return Update([*parts, *self._final_parts()], ids, logprobs)

    def _decode(self, deltas: list[AnswerDelta]) -> Update:
        ids = [i for delta in deltas for i in delta.ids]
        return Update(list(self._parts(ids)), ids, [logprob for delta in deltas for logprob in delta.logprobs])

    def _parts(self, ids: list[int]) -> Iterator[Part]:
        """Decode ids: yield the parts that they add, texts and calls of tools, in order."""
        for token in ids:
            before = len(self._detokenizer.parts)
            if text := self._detokenizer.push(token):
                yield Part("text", text)
            yield from (part for part in self._detokenizer.parts[before:] if part.kind != "text")

    def _final_parts(self) -> list[Part]:
        return [Part("text", text)] if (text := self._detokenizer.finish()) else []


def start_answers(
    models: Models, model: Model, prompts: Sequence[Prompt], config: GenerationConfig, n: int = 1
) -> list[Answer]:
    """Start `n` answers to each prompt, the seed of each one greater than that of the last.

    Raises ApiError if they are more than the model takes.
    """
    count, most = n * len(prompts), model.scheduler.max_jobs
    if count > most:
        message = f"n: {count} answers: expected at most {most}, which this server runs and queues"
        raise ApiError(400, message, param="n" if n > 1 else "prompt", code="invalid_value")
    answers = []
    for index in range(count):
        prompt, seed = prompts[index // n], (config.sampling.seed + index) % (1 << 64)
        own = config._replace(sampling=replace(config.sampling, seed=seed), answer_prefix=prompt.answer_prefix)
        answers.append(Answer(model, prompt, own, models.options.time_limit, index))
    submit(model, *(answer.job for answer in answers))
    return answers


def answer_response(answers: Sequence[Answer], respond: Callable[[Send], Awaitable[None]]) -> Response:
    """A response whose jobs end with it."""

    async def respond_and_cancel(send: Send) -> None:
        try:
            await respond(send)
        finally:
            for answer in answers:
                answer.model.scheduler.cancel(answer.job)

    return CancellableResponse(respond_and_cancel)


def submit(model: Model, *jobs: Job) -> None:
    """Give jobs to the model's scheduler. Raises ApiError if they are refused."""
    try:
        model.scheduler.submit(*jobs)
    except ValueError as error:
        raise ApiError(400, str(error), code="invalid_value") from error
    except (QueueFull, SchedulerStopped) as error:
        raise to_api_error(error) from error


async def merged(answers: Sequence[Answer]) -> AsyncIterator[tuple[Answer, Update | None, bool]]:
    """Yield the updates of several answers as they come; the last item of each answer is True, without an update."""
    queue: asyncio.Queue[tuple[Answer, Update | None, bool]] = asyncio.Queue()

    async def forward(answer: Answer) -> None:
        try:
            async for update in answer.updates():
                queue.put_nowait((answer, update, False))
        finally:
            queue.put_nowait((answer, None, True))

    tasks = [asyncio.create_task(forward(answer)) for answer in answers]
    remaining = len(tasks)
    try:
        while remaining:
            item = await queue.get()
            remaining -= item[2]
            yield item
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def with_timeout(seconds: float, wait: Callable[[], Awaitable[Result]]) -> Result | None:
    """The awaited result; None after `seconds` without one."""
    try:
        async with asyncio.timeout(seconds):  # wait_for would miss a cancellation that comes with the result
            return await wait()
    except TimeoutError:
        return None


# Sends completions, in one response or as server-sent events.


class ChoiceWriter:
    """Formats one answer as a choice."""

    def __init__(
        self, answer: Answer, parameters: requests.GenerationRequest, builder: responses.CompletionBuilder
    ) -> None:
        self.answer, self._parameters, self._builder = answer, parameters, builder
        self._text_offset, self._first = len(answer.prompt.echo), True

    async def choice(self) -> responses.JsonObject:
        """The choice of the complete answer."""
        parts, ids, logprobs = await self.answer.complete()
        all_parts = responses.merge_texts([*self.answer.prompt.echo_parts, *parts])
        more = {"token_ids": ids} if self._parameters.return_token_ids else {}
        return self._builder.choice(
            self.answer.index, all_parts, self._logprobs(logprobs), self.answer.job.finish_reason, more
        )

    def chunk(self, update: Update) -> bytes:
        parts = responses.merge_texts([*(self.answer.prompt.echo_parts if self._first else ()), *update.parts])
        returned, first = self._parameters.return_token_ids, self._first
        more = {"token_ids": update.ids} if returned else {}
        logprobs, self._first = self._logprobs(update.logprobs), False
        chunk = self._builder.chunk(self.answer.index, parts, logprobs, more, first=first)
        prompt_ids = {"prompt_token_ids": self.answer.job.prompt_ids} if returned and first else {}
        return responses.to_json(chunk | prompt_ids)

    def final_chunks(self, more: responses.JsonObject) -> list[bytes]:
        """The last chunk, after a first one if there was none."""
        first = [self.chunk(Update([], [], []))] if self._first else []
        final = self._builder.final_chunk(self.answer.index, self.answer.job.finish_reason, more)
        return [*first, responses.to_json(final)]

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
        self, answers: Sequence[Answer], parameters: requests.GenerationRequest, builder: responses.CompletionBuilder
    ) -> None:
        self._answers, self._parameters, self._builder = answers, parameters, builder
        self._choices = [ChoiceWriter(answer, parameters, builder) for answer in answers]

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
        read = {"dropped_messages": answer.prompt.dropped_messages, "lost": answer.prompt.lost}
        return {"timings": responses.timings_of(answer.job, answer.model.context) | read}


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
