import asyncio
import threading

import numpy as np
import pytest

from chatmill.app.server.scheduler import CompletionJob, GenerationConfig, Scheduler
from chatmill.app.server.security import ApiError
from chatmill.engines.engine import ChatBatch
from chatmill.inference.chat_session import PromptBuilder
from chatmill.inference.chat_template import ChatmillTemplate
from chatmill.inference.model_loading import load_model
from chatmill.inference.sampler import Sampling
from export_onnx import main as export
from support.scripted import ScriptedEngine
from support.tiny import CONFIG, byte_tokenizer, write_model

TOKENIZER = byte_tokenizer()
SECONDS = 60


class Gated(ScriptedEngine):
    """Generates the same token for ever, one each time that the gate is opened."""

    def __init__(self, script, **sizes):
        super().__init__(script, **sizes)
        self.gate = threading.Semaphore(0)

    def append(self, ids):
        assert self.gate.acquire(timeout=SECONDS)
        return super().append(ids)


def gated(tokens=1000):
    return Gated([65] * tokens, vocab_size=TOKENIZER.vocab_size, context=2000)


@pytest.fixture(scope="module", params=["pytorch", "onnx"])
def loaded(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("served")
    write_model(folder / "pytorch")
    if request.param == "onnx":
        export(folder / "pytorch", folder / "onnx", quantize=[])
    return load_model(folder / request.param, "cpu", 1)


def answer(engine, ids=(1, 2, 3), max_tokens=10, seconds=SECONDS, **config):
    prompt_builder = PromptBuilder(engine, TOKENIZER, ChatmillTemplate("chatml"))
    return CompletionJob(prompt_builder, list(ids), GenerationConfig(Sampling(), max_tokens, **config), seconds)


async def all_of(job):
    """The ids of an answer, or the log probabilities of a text."""
    results = [result async for batch in job.results.batches() for result in batch]
    if job.error:
        raise job.error
    return [i for delta in results for i in delta.ids] if isinstance(job, CompletionJob) else results


def run(engine, work, num_slots=3, max_waiting=3):
    """The result of a coroutine that is called with a scheduler."""
    scheduler = Scheduler(engine, num_slots=num_slots, max_waiting=max_waiting)

    async def main():
        return await asyncio.wait_for(work(scheduler), SECONDS)

    try:
        return asyncio.run(main())
    finally:
        scheduler.stop()


def alone(engine, ids, count):
    """The greedy continuation of ids, by the engine alone."""
    prompt_builder = PromptBuilder(engine, TOKENIZER, ChatmillTemplate("chatml"))
    engine.rewind(0)
    logits, said = engine.append(ids), []
    while len(said) < count:
        said.append(int(np.where(prompt_builder.allowed, logits, -np.inf).argmax()))
        if said[-1] in prompt_builder.stop_ids:
            break
        logits = engine.append(said[-1:])
    return said


def test_answers_that_grow_together_are_those_that_each_would_get_alone(loaded):
    prompts = [[i, 5, 7 * i % 256, *range(i)] for i in range(1, 9)]

    async def work(scheduler):
        jobs = [answer(loaded.engine, prompt, 12 + prompt[0]) for prompt in prompts]
        for job in jobs:
            scheduler.submit(job)
        return await asyncio.gather(*map(all_of, jobs))

    together = run(loaded.engine, work, max_waiting=8)
    assert together == [alone(loaded.engine, prompt, 12 + prompt[0]) for prompt in prompts]


def test_what_a_chat_has_read_is_not_read_again_while_others_come_and_go(loaded):
    async def work(scheduler):
        first = answer(loaded.engine, [1, 2, 3, 4], 6)
        scheduler.submit(first)
        said = await all_of(first)
        others = [answer(loaded.engine, [9, 9, i], 5) for i in range(6)]
        for job in others[:2]:
            scheduler.submit(job)
        await asyncio.gather(*map(all_of, others[:2]))
        again = answer(loaded.engine, [1, 2, 3, 4, *said, 7, 7], 3)
        scheduler.submit(again)
        return await all_of(again), again.cached_tokens, said

    ids, cached, said = run(loaded.engine, work)
    assert cached == 4 + len(said) - 1
    assert ids == alone(loaded.engine, [1, 2, 3, 4, *said, 7, 7], 3)


def test_who_comes_past_the_queue_is_refused_at_once():
    engine = gated()

    async def work(scheduler):
        jobs = [answer(engine) for _ in range(4)]
        for job in jobs[:3]:
            scheduler.submit(job)
        with pytest.raises(ApiError, match="busy"):
            scheduler.submit(jobs[3])
        engine.gate.release(100)
        return [len(await all_of(job)) for job in jobs[:3]]

    assert run(engine, work, max_waiting=2) == [10, 10, 10]


def test_an_answer_that_nobody_waits_for_ends_before_its_next_token():
    engine = gated()

    async def work(scheduler):
        job = answer(engine, max_tokens=500)
        scheduler.submit(job)
        engine.gate.release(3)
        while len(engine.received_ids) != 3:
            await asyncio.sleep(0.01)
        job.cancelled = True
        engine.gate.release(100)
        with pytest.raises(ApiError, match="cancelled"):
            await all_of(job)
        return scheduler.idle

    assert run(engine, work)
    assert len(engine.received_ids) <= 4


def test_an_error_ends_the_answer_that_met_it_and_no_other():
    engine = ScriptedEngine([65] * 100, vocab_size=TOKENIZER.vocab_size, context=2000)
    engine.append = lambda ids, append=engine.append: append(ids) * (np.nan if 13 in ids else 1)

    async def work(scheduler):
        bad, good = answer(engine, [13]), answer(engine, [12])
        for job in (bad, good):
            scheduler.submit(job)
        with pytest.raises(ValueError, match="largest logit is nan at token 1"):
            await all_of(bad)
        return await all_of(good)

    assert run(engine, work) == [65] * 10


def test_engines_with_one_cache_have_one_chat(loaded):
    assert len(ChatBatch(gated(), 8).chats) == 1
    assert len(ChatBatch(loaded.engine, 8).chats) == 8
    assert CONFIG.max_position_embeddings == loaded.engine.context
