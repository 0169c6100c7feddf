"""Measure how fast the tokenizer and the chat model are, with every engine.

`ttft_ms` is the time to the first token, from the prompt's ids to the greedy choice, and `token_ms` that of each next
token. With `cache` the engine uses its key-value cache; with `recompute` each token processes the complete sequence.
Repetitions of all engines alternate, after a warm-up that does not count; `spread` is the slowest divided by the
fastest of them. A token takes at least as long as reading the weights and the cache: `limit` is this time by the memory
bandwidth, measured in each repetition with as many threads, and `reached` the least time divided by the measured one.
"""

import json
import os
from pathlib import Path
from typing import Any

from chatmill.benchmarking import (
    describe_limit,
    fitting_lengths,
    latencies,
    make_cases,
    make_prompts,
    peak_memory_mb,
    read_workload,
    time_cases,
    time_tokenizer,
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

    # All engines in turn, with the bandwidth in the same repetition.
    if lengths := fitting_lengths(prompt_tokens, new_tokens, engines[0].context):
        workload = read_workload(model, onnx)
        cases = make_cases(engines, make_prompts(test, tokenizer, engines[0].template, lengths))
        cases, bandwidths = time_cases(cases, workload, new_tokens, repeats, threads)
        timed = latencies(cases, bandwidths, workload)
        if workload.weights:
            content["limit"] = describe_limit(workload, bandwidths, lengths[-1], timed)
        for name, folder in progress(folders.items(), "measure memory"):
            timed[name]["peak_memory_mb"] = peak_memory_mb(folder, name, prompt_tokens=lengths[-1], threads=threads)
        content |= timed
    content["tokenizer"] = time_tokenizer(tokenizer, exports, test, repeats)
    four_digits = json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.4g}"))
    metrics.write_text(json.dumps(four_digits, indent=1) + "\n", encoding="utf-8")
