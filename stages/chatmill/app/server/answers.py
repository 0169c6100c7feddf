"""The answers to a request, while their jobs generate them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server.api_errors import (
    PING_SECONDS,
    ApiError,
    CancellableResponse,
    QueueFull,
    SchedulerStopped,
    to_api_error,
)
from chatmill.app.server.jobs import (
    AnswerDelta,
    CompletionJob,
    GenerationConfig,
    Job,
    new_detokenizer,
)
from chatmill.app.server.models import Model, Models
from chatmill.app.server.prompts import Prompt
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
