"""The answers to a request, while their jobs generate them, in one response or as server-sent events."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from time import time
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server import requests, responses
from chatmill.app.server.jobs import CompletionJob, GenerationConfig, Job, Update
from chatmill.app.server.models import Model
from chatmill.app.server.prompts import Prompt
from chatmill.app.server.responses import JsonObject
from chatmill.app.server.security import ApiError, CancellableResponse, send_events, send_response, to_api_error
from chatmill.inference.sampler import TokenLogprob

FLUSH = 0.02  # seconds between two updates, in which a fast model's tokens gather


class Answer(NamedTuple):
    model: Model
    prompt: Prompt
    number: int  # among the answers to the request, from 0
    job: CompletionJob

    async def updates(self) -> AsyncIterator[Update]:
        """Yield what is added to the answer. Raises ApiError if the job fails."""
        while updates := await self.job.results.get_all():
            yield joined(updates)
            await self.job.results.wait_closed(FLUSH)
        if self.job.error:
            raise to_api_error(self.job.error)

    async def complete(self) -> Update:
        """The complete answer. Raises ApiError if the job fails."""
        await self.job.results.wait_closed()
        if self.job.error:
            raise to_api_error(self.job.error)
        return joined(await self.job.results.get_all())


def joined(updates: Sequence[Update]) -> Update:
    return Update(
        [part for update in updates for part in update.parts],
        [i for update in updates for i in update.ids],
        [logprob for update in updates for logprob in update.logprobs],
    )


def new_answers(
    model: Model, prompts: Sequence[Prompt], config: GenerationConfig, n: int, time_limit: float
) -> list[Answer]:
    """`n` answers to each prompt, with seeds that count up. Raises ApiError if they are more than the model takes."""
    count, most = n * len(prompts), model.scheduler.max_jobs
    if count > most:
        param = "n" if n > 1 else "prompt"
        message = f"{param}: {count} answers: expected at most {most}, as many as this server runs and queues"
        raise ApiError(400, message, param=param, code="invalid_value")
    answers = []
    for index in range(count):
        prompt, seed = prompts[index // n], (config.sampling.seed + index) % (1 << 64)
        own = config._replace(sampling=replace(config.sampling, seed=seed), answer_prefix=prompt.answer_prefix)
        answers.append(Answer(model, prompt, index, CompletionJob(model.prompt_builder, prompt.ids, own, time_limit)))
    return answers


def job_response(model: Model, jobs: Sequence[Job], respond: Callable[[Send], Awaitable[None]]) -> Response:
    """A response while jobs run, which end with it. Raises ApiError if the model's scheduler refuses them."""
    model.scheduler.submit(*jobs)

    async def respond_and_cancel(send: Send) -> None:
        try:
            await respond(send)
        finally:
            for job in jobs:
                model.scheduler.cancel(job)

    return CancellableResponse(respond_and_cancel)


async def merged(answers: Sequence[Answer]) -> AsyncIterator[tuple[Answer, Update | None]]:
    """Yield the updates of several answers as they come, and None after the last one of each."""
    streams = [(answer, answer.updates()) for answer in answers]
    pending = {asyncio.ensure_future(anext(updates, None)): (answer, updates) for answer, updates in streams}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                answer, updates = pending[task]
                update = task.result()
                del pending[task]
                yield answer, update
                if update:
                    pending[asyncio.ensure_future(anext(updates, None))] = answer, updates
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


class ChoiceWriter:
    """Formats one answer as a choice."""

    def __init__(self, answer: Answer, parameters: requests.GenerationRequest) -> None:
        self._answer, self._returns_ids = answer, parameters.return_token_ids
        self._is_chat = isinstance(parameters, requests.ChatRequest)
        self._text_offset = len(answer.prompt.echo)
        self.is_first = True  # nothing was streamed

    async def choice(self) -> JsonObject:
        update = await self._answer.complete()
        parts = responses.merge_texts([*self._answer.prompt.echo_parts, *update.parts])
        common = self._common(update) | {"finish_reason": self._answer.job.finish_reason}
        if not self._is_chat:
            return {"text": responses.plain_text(parts), **common}
        content = {"content": responses.plain_text(parts), "refusal": None, **responses.tool_parts(parts)}
        return {"message": {"role": "assistant", **content}, **common}

    def chunk(self, update: Update) -> JsonObject:
        """The choice with what was added to the answer."""
        parts = responses.merge_texts([*(self._answer.prompt.echo_parts if self.is_first else ()), *update.parts])
        text, common = responses.plain_text(parts), self._common(update)
        prompt_ids = {"prompt_token_ids": self._answer.job.prompt_ids} if self._returns_ids and self.is_first else {}
        delta: JsonObject = {"role": "assistant", "content": ""} if self.is_first else {}
        delta |= ({"content": text} if text else {}) | responses.tool_parts(parts)
        self.is_first = False
        return {"choices": [{**({"delta": delta} if self._is_chat else {"text": text}), **common}], **prompt_ids}

    def final_chunk(self) -> JsonObject:
        empty: JsonObject = {"delta": {}} if self._is_chat else {"text": ""}
        end = {"index": self._answer.number, "logprobs": None, "finish_reason": self._answer.job.finish_reason}
        return {"choices": [{**empty, **end}]}

    def _common(self, update: Update) -> JsonObject:
        token_ids = {"token_ids": update.ids} if self._returns_ids else {}
        logprobs = self._logprobs(update.logprobs)
        return {"index": self._answer.number, "logprobs": logprobs, "finish_reason": None, **token_ids}

    def _logprobs(self, logprobs: list[TokenLogprob]) -> JsonObject | None:
        if self._answer.job.num_logprobs is None:
            return None
        tokenizer = self._answer.model.loaded.tokenizer
        if self._is_chat:
            return responses.chat_logprobs(logprobs, tokenizer)
        result = responses.text_logprobs(logprobs, tokenizer, self._text_offset)
        self._text_offset += sum(map(len, result["tokens"]))
        return result


class CompletionWriter:
    """Sends the answers to a request of /v1/chat/completions or /v1/completions, one choice each."""

    def __init__(self, answers: Sequence[Answer], parameters: requests.GenerationRequest) -> None:
        self._answers, self._parameters = answers, parameters
        self._choices = [ChoiceWriter(answer, parameters) for answer in answers]
        is_chat = isinstance(parameters, requests.ChatRequest)
        self._object = "chat.completion" if is_chat else "text_completion"
        self._chunk_object = "chat.completion.chunk" if is_chat else "text_completion"
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._head = {"id": name, "created": int(time()), "model": answers[0].model.name}

    async def send(self, send: Send) -> None:
        """Send the answers as events where that is requested, else in one response."""
        if self._parameters.stream:
            await send_events(send, self._events())
            return
        choices = [await choice.choice() for choice in self._choices]
        totals: JsonObject = {"choices": choices, "usage": self._usage(), **self._timings()}
        if self._parameters.return_token_ids:
            totals["prompt_token_ids"] = self._answers[0].job.prompt_ids
        await send_response(send, responses.json_response({"object": self._object, **self._head, **totals}))

    async def _events(self) -> AsyncIterator[bytes]:
        async for answer, update in merged(self._answers):
            choice = self._choices[answer.number]
            if update or choice.is_first:
                yield self._chunk(choice.chunk(update or Update([], [], [])))
            if not update:
                yield self._chunk(choice.final_chunk() | self._timings())
        if self._parameters.includes_usage:
            yield self._chunk({"choices": [], "usage": self._usage()})

    def _chunk(self, content: JsonObject) -> bytes:
        return responses.to_json({"object": self._chunk_object, **self._head, **content})

    def _usage(self) -> JsonObject:
        prompts = self._answers[:: self._parameters.n or 1]
        return responses.usage_of([a.job for a in self._answers], [a.job for a in prompts])

    def _timings(self) -> JsonObject:
        if len(self._answers) > 1:
            return {}
        answer = self._answers[0]
        read = {"dropped_messages": answer.prompt.dropped_messages, "lost": answer.prompt.lost}
        return {"timings": responses.timings_of(answer.job, answer.model.context) | read}
