"""Lower bounds of latency (roofline): the machine's memory bandwidth and FLOP/s, and how much of each a model needs.

A token takes at least as long as reading the weights and the cache. A prompt takes at least as long as reading the
weights, and at least as long as its matrix products in float32.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from chatmill.engines.engine import ONNX_FILES
from chatmill.engines.onnx_session import Session
from chatmill.inference.model_loading import engine_names

TRIALS = 5  # the median counts
TRIAL_BYTES = 100_000_000  # read in a trial; a smaller buffer is read repeatedly
ROWS, WIDTH, NUM_MATMULS = 1024, 512, 8  # a trial multiplies (ROWS, WIDTH) by (WIDTH, WIDTH) NUM_MATMULS times
LOOKUP_OPS = {
    "Gather",
    "GatherBlockQuantized",
    "GroupQueryAttention",
    "Reshape",
    "RotaryEmbedding",
}  # they read rows of tables


class MachineLimits(NamedTuple):
    """Memory bandwidth in bytes per second by the size of the buffer that is read, and FLOP/s of matrix products."""

    bandwidths: dict[int, float]
    flops_per_second: float


class Workload(NamedTuple):
    """A model's demand, from its Qwen3 config.json and the bytes of its weights in each engine."""

    config: Mapping[str, Any]
    weights: Mapping[str, int]

    def bytes_per_token(self, engine: str, tokens: int) -> int:
        """Bytes read to generate one token after `tokens` others: the weights, and the keys and values in the cache."""
        heads: int = self.config["num_hidden_layers"] * self.config["num_key_value_heads"]
        size: int = self.config["head_dim"]
        return self.weights[engine] + tokens * heads * size * 2 * np.dtype(np.float32).itemsize

    def prompt_flops(self, tokens: int) -> int:
        """FLOPs of the matrix products that process a prompt of `tokens` tokens."""
        width, size = self.config["hidden_size"], self.config["head_dim"]
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        weights = width * size * 2 * (heads + kv_heads) + 3 * width * self.config["intermediate_size"]
        attended = tokens * (tokens + 1) // 2  # pairs of a position and itself or an earlier one
        layer = tokens * weights + 2 * attended * heads * size
        products: int = self.config["num_hidden_layers"] * layer + width * self.config["vocab_size"]
        return 2 * products

    def min_token_ms(self, engine: str, tokens: int, limits: MachineLimits) -> float:
        """The least time of a token after `tokens` others."""
        return 1e3 * self.bytes_per_token(engine, tokens) / limits.bandwidths[self.weights[engine]]

    def min_ttft_ms(self, engine: str, tokens: int, limits: MachineLimits) -> float:
        """The least time to the first token after a prompt of `tokens` tokens."""
        return max(1e3 * self.prompt_flops(tokens) / limits.flops_per_second, self.min_token_ms(engine, 0, limits))


def weight_bytes(graph: Path) -> int:
    """Bytes of a graph's weights that each token reads: all but the tables of which it reads one row."""
    content = onnx.load(graph).graph
    needed = {name for node in content.node if node.op_type not in LOOKUP_OPS for name in node.input}
    return sum(len(tensor.raw_data) for tensor in content.initializer if tensor.name in needed)


class LimitsProbe:
    """Measures the limits of the machine with this number of threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "products.onnx")
            onnx.save(_matmul_graph(), file)
            self._session = Session(file, threads=threads)

    def measure(self, sizes: Iterable[int]) -> MachineLimits:
        """The current limits, with the bandwidth for each size."""
        return MachineLimits({size: self.bandwidth(size) for size in set(sizes)}, self.flops_per_second())

    def bandwidth(self, size: int) -> float:
        """Bytes per second read from a buffer of this size; a small one stays in the CPU's caches, as weights do."""
        parts = np.array_split(np.ones(-(-size // 8), np.int64), self.threads)
        passes = max(1, TRIAL_BYTES // size)

        def read(part: NDArray[np.int64]) -> None:
            for _ in range(passes):
                part.max()  # the fastest reading call of NumPy

        with ThreadPoolExecutor(self.threads) as pool:
            return passes * size / _median_seconds(lambda: list(pool.map(read, parts)))

    def flops_per_second(self) -> float:
        """FLOP/s of matrix products in float32 with ONNX Runtime."""
        feed, types = {"rows": np.ones((ROWS, WIDTH), np.float32)}, {"rows": "tensor(float)"}
        return NUM_MATMULS * 2 * ROWS * WIDTH**2 / _median_seconds(lambda: self._session.run(["product"], feed, types))


def _matmul_graph() -> onnx.ModelProto:
    names = ["rows", *(f"product.{i}" for i in range(1, NUM_MATMULS)), "product"]
    nodes = [helper.make_node("MatMul", [x, "weight"], [y]) for x, y in pairwise(names)]
    start, end = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH]) for name in ("rows", "product"))
    weight = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "weight")
    graph = helper.make_graph(nodes, "products", [start], [end], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def _median_seconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIALS):
        started = perf_counter()
        action()
        times.append(perf_counter() - started)
    return median(times)


def read_workload(model: Path, onnx: Path) -> Workload:
    """The workload of each engine; that of PyTorch is the float32 graph's, and without a graph it is unknown."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    weights = {name: weight_bytes(onnx / ONNX_FILES[name]) for name in engine_names(onnx)}
    return Workload(config, {"pytorch": weights["onnx"]} | weights if weights else {})
