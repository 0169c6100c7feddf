"""Measure how fast the tokenizer and the chat model are, with every engine.

`ttft_ms` is the time to the first token, from the prompt's ids to the greedy choice, and `token_ms` that of each next
token. With `cache` the engine uses its key-value cache; with `recompute` each token processes the complete sequence.
`turn_ms` is the time to read a message of TURN_TOKENS tokens after a cached history of the given length. Repetitions of
all engines alternate, after a warm-up that does not count; `spread` is the slowest divided by the fastest of them.
`limit` is measured in each repetition with the same number of threads: a token takes at least as long as reading the
weights and the cache. `reached` is this least time divided by the measured one. `streaming` is the share of a token's
time that is spent on sampling and detokenizing it.
"""

import json
import os
from pathlib import Path
from typing import Any

from chatmill.benchmarking.latency import (
    LimitsProbe,
    describe_limit,
    latencies,
    make_cases,
    peak_memory_mb,
    read_workload,
    time_cases,
)
from chatmill.benchmarking.timing import (
    fitting_lengths,
    make_prompts,
    measure_streaming,
    round_significant,
    time_tokenizer,
    time_turns,
)
from chatmill.inference.model_loading import engine_names, load_engine
from chatmill.pipeline.params_file import PositiveInt
from chatmill.pipeline.progress import progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.processor import describe_machine
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer


@stage
def main(
    test: Path,
    exports: Path,
    model: Path,
    onnx: Path,
    metrics: Output,
    *,
    prompt_tokens: list[PositiveInt],
    new_tokens: PositiveInt,
    repeats: PositiveInt,
    threads: PositiveInt,
) -> None:
    """Time the engines on prompts from the test set, and the tokenizer on its text; write the metrics."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's idle threads do not take time from ONNX Runtime
    content: dict[str, Any] = {"machine": describe_machine(threads)}
    tokenizer = load_tokenizer(model)
    folders = {"pytorch": model} | dict.fromkeys(engine_names(onnx), onnx)
    engines = [load_engine(folder, name, device="cpu", threads=threads) for name, folder in folders.items()]

    # All engines in turn, with the limits of the machine in the same repetition.
    if lengths := fitting_lengths(prompt_tokens, new_tokens, engines[0].context):
        *prompts, history = make_prompts(test, tokenizer, engines[0], lengths, max(prompt_tokens))
        workload, cases = read_workload(model, onnx), make_cases(engines, prompts)
        cases, repetitions = time_cases(cases, workload, LimitsProbe(threads), new_tokens, repeats)
        timed, number = latencies(cases, repetitions, workload), len(repetitions)
        for engine, turns in zip(engines, time_turns(engines, history, number), strict=True):
            streaming = measure_streaming(engine, tokenizer, prompts[0], number)
            timed[engine.name] |= {"turn_ms": turns, "streaming": streaming}
        for name, folder in progress(folders.items(), "measure memory"):
            timed[name]["peak_memory_mb"] = peak_memory_mb(folder, name, prompt_tokens=lengths[-1], threads=threads)
        content |= timed
        if workload.weights:
            shares = {name: values["cache"][str(lengths[-1])]["reached"]["token"] for name, values in timed.items()}
            content["limit"] = describe_limit(workload, repetitions, lengths[-1]) | {"reached": shares}
    content["tokenizer"] = time_tokenizer(tokenizer, exports, test, repeats)
    metrics.write_text(json.dumps(round_significant(content), indent=1) + "\n", encoding="utf-8")
