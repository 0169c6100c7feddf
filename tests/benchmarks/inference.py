"""The time to read a message after a history, with and without attention, as ONNX Runtime profiles it.

    python tests/benchmarks/inference.py [FOLDER] [--threads N]

FOLDER is one that export_onnx wrote (default: data/export/onnx). Attention reads the history, so its time grows with
it; all other time should not. `streaming` is the fraction of a token's time outside the engine.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "stages"))

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402

from benchmark import SAMPLINGS, measure_streaming  # noqa: E402
from chatmill.engines.engine import ONNX_FILES, default_threads  # noqa: E402
from chatmill.engines.onnx_engine import SharedCacheEngine  # noqa: E402
from chatmill.engines.onnx_session import SPIN_OPTIONS, Session  # noqa: E402
from chatmill.inference.model_loading import load_engine  # noqa: E402
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer  # noqa: E402

TURN = 32
REPEATS = 40


class ProfiledSession(Session):
    """A session that records how long each node took."""

    def _open(self, threads, providers):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        for name, value in SPIN_OPTIONS.items():
            options.add_session_config_entry(f"session.intra_op.{name}", value)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(tempfile.mkdtemp()) / "profile")
        return onnxruntime.InferenceSession(self.file, options, providers=providers)


def profile(session):
    """The milliseconds of each run, and of its attention."""
    events = json.loads(Path(session.session.end_profiling()).read_text())
    runs = sorted((event["ts"], event["dur"]) for event in events if event["name"] == "model_run")
    nodes = [event for event in events if event.get("args", {}).get("op_name") == "GroupQueryAttention"]
    for start, length in runs:
        inside = [node["dur"] for node in nodes if start <= node["ts"] < start + length]
        yield length / 1000, sum(inside) / 1000


def time_turns(folder, threads, histories):
    """Print the median milliseconds of a turn after each history; the histories alternate."""
    session = ProfiledSession(folder / ONNX_FILES["onnx"], threads=threads)
    engine = SharedCacheEngine(session, "onnx")
    ids = np.random.default_rng(0).integers(0, engine.vocab_size, engine.context).tolist()
    order = []
    for _ in range(REPEATS):
        engine.rewind(0)
        for history in histories:
            if history:
                engine.append(ids[engine.length : history])
                order.append(None)
            engine.append(ids[history : history + TURN])
            order.append(history)
    measured = {history: [] for history in histories}
    for history, times in zip(order, profile(session), strict=True):
        if history is not None:
            measured[history].append(times)
    print(f"{folder}, {threads} threads: a turn of {TURN} tokens")
    first = None
    for history, times in measured.items():
        total, rest = median(run for run, _ in times), median(run - attention for run, attention in times)
        first = first or rest
        print(f"  after {history:5} tokens: {total:.3f} ms, without attention {rest:.3f} ms ({rest / first:.2f} of 0)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "data/export/onnx")
    parser.add_argument("--threads", type=int, default=default_threads())
    options = parser.parse_args()
    engine = load_engine(options.folder, "onnx", threads=options.threads)
    time_turns(options.folder, options.threads, [0, 250, 500, 750, engine.context - TURN])
    shares = measure_streaming(engine, load_tokenizer(options.folder), [0] * 16, 20)
    print("  streaming:", ", ".join(f"{name} {shares[name]:.1%}" for name in SAMPLINGS))


if __name__ == "__main__":
    main()
