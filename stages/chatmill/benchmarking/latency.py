"""How long engines take to answer, in turn, beside what the machine allows in the same minute."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from chatmill.benchmarking.roofline import LimitsProbe, MachineLimits, Workload
from chatmill.engines.engine import Engine
from chatmill.pipeline.progress import progress

RECOMPUTED_TOKENS = 3  # tokens of a repetition without cache: each reads everything again
RECOMPUTE_ENGINES = ("pytorch", "onnx")

Metrics = dict[str, Any]


class Case(NamedTuple):
    """One thing to time: an engine answering a prompt of some length, with its cache or without."""

    engine: Engine
    mode: str
    prompt: list[int]


class Repetition(NamedTuple):
    """One repetition: what the machine allowed, and the milliseconds of each case's tokens."""

    limits: MachineLimits
    times: list[list[float]]


def make_cases(engines: Sequence[Engine], prompts: Sequence[list[int]]) -> list[Case]:
    """All that is timed, with what is compared side by side."""
    return [
        Case(engine, mode, prompt)
        for prompt in prompts
        for mode in ("cache", "recompute")
        for engine in engines
        if mode == "cache" or engine.name in RECOMPUTE_ENGINES
    ]


def time_cases(
    cases: Sequence[Case], needs: Workload, meter: LimitsProbe, new_tokens: int, repeats: int
) -> list[Repetition]:
    """The repetitions, after one that does not count."""
    rounds = [
        Repetition(meter.measure(needs.weights.values()), [token_times_ms(case, new_tokens) for case in cases])
        for _ in progress(range(1 + repeats), "time engines")
    ]
    return rounds[1:]


def token_times_ms(case: Case, new_tokens: int) -> list[float]:
    """Milliseconds to the first token, and for each of the next."""
    ids, times = list(case.prompt), []
    case.engine.rewind(0)
    for _ in range(1 + (new_tokens if case.mode == "cache" else RECOMPUTED_TOKENS)):
        started = perf_counter()
        if case.mode == "recompute":
            case.engine.rewind(0)
        ids.append(int(case.engine.append(ids[case.engine.length :]).argmax()))
        times.append(1e3 * (perf_counter() - started))
    return times


def latencies(cases: Sequence[Case], rounds: Sequence[Repetition], needs: Workload) -> Metrics:
    """What was measured, by engine, mode and length of the prompt."""
    result: Metrics = {case.engine.name: defaultdict(dict) for case in cases}
    limits = [allowed for allowed, _ in rounds]
    for index, case in enumerate(cases):
        answers = [times[index] for _, times in rounds]
        values = time_statistics(answers)
        if case.mode == "cache" and case.engine.name in needs.weights:
            values["bytes_per_token"] = needs.bytes_per_token(case.engine.name, len(case.prompt))
            values["reached"] = fraction_of_limit(case, answers, limits, needs)
        result[case.engine.name][case.mode][str(len(case.prompt))] = values
    return result


def time_statistics(answers: Sequence[Sequence[float]]) -> Metrics:
    """The times of a case's repetitions; `spread` is the slowest of them as a multiple of the fastest."""
    firsts, nexts = [first for first, *_ in answers], [rest for _, *rest in answers]
    medians = [median(rest) for rest in nexts]
    return {
        "ttft_ms": percentiles(firsts) | {"spread": max(firsts) / min(firsts)},
        "token_ms": percentiles(list(chain.from_iterable(nexts))) | {"spread": max(medians) / min(medians)},
    }


def fraction_of_limit(
    case: Case, answers: Sequence[Sequence[float]], limits: Sequence[MachineLimits], needs: Workload
) -> Metrics:
    """The share of what the machine allowed in the same repetition, at the first token and at those after it."""
    name, tokens = case.engine.name, len(case.prompt)
    pairs = list(zip(answers, limits, strict=True))
    return {
        "ttft": median(needs.min_ttft_ms(name, tokens, allowed) / first for (first, *_), allowed in pairs),
        "token": median(needs.min_token_ms(name, tokens, allowed) / median(rest) for (_, *rest), allowed in pairs),
    }


def percentiles(values: Sequence[float]) -> Metrics:
    """The median, and what 19 of 20 stay under."""
    return {f"p{share}": float(np.percentile(values, share)) for share in (50, 95)}
