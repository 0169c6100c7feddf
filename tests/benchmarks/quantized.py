"""The quality and the size of each precision of the export.

    python tests/benchmarks/quantized.py [MODEL] [CONVERSATIONS] [--limit N] [--questions N] [--threads N]

MODEL is a folder that train_model wrote (default: data/model), CONVERSATIONS a file that mix wrote (default:
data/chat/test.jsonl). Bits per byte are of all text and of the assistant's, each with its increase over float32's.
Skills are the fraction of correct answers to the first questions of each skill, where the conversations have any.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "stages"))

import export_onnx  # noqa: E402
from chatmill.engines.engine import ONNX_FILES, Engine, default_threads  # noqa: E402
from chatmill.evaluation.answering import accuracies, answer_questions, graded  # noqa: E402
from chatmill.evaluation.bits_per_byte import make_scorer  # noqa: E402
from chatmill.evaluation.corpus import Corpus  # noqa: E402
from chatmill.evaluation.held_out_set import Question, read_test_set, sample_test_set  # noqa: E402
from chatmill.evaluation.intervals import values_of  # noqa: E402
from chatmill.inference.chat_session import ChatSession  # noqa: E402
from chatmill.inference.chat_template import ChatmillTemplate  # noqa: E402
from chatmill.inference.model_loading import load_engine  # noqa: E402
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer  # noqa: E402

MAX_TOKENS = 128  # of an answer
QUANTIZED = [name.removeprefix("onnx_") for name in ONNX_FILES if name not in ("onnx", "onnx_hf")]
PRECISIONS = {"float32": "onnx"} | {name: f"onnx_{name}" for name in QUANTIZED}


class Quality(NamedTuple):
    """The quality of one precision; None where the conversations have nothing to measure it by."""

    everything: float | None  # bits per byte
    assistant: float | None
    skills: float | None


def measure(engine: Engine, corpus: Corpus, questions: list[Question]) -> Quality:
    """Bits per byte of the corpus, and the macro accuracy of the skills."""
    nats = corpus.nats(engine.context, make_scorer(engine))
    session = ChatSession(engine, corpus.tokenizer, ChatmillTemplate(engine.template))
    right = graded(questions, answer_questions(session, questions, MAX_TOKENS))
    bits = (corpus.bits_per_byte(nats, trained_only=trained_only) for trained_only in (False, True))
    return Quality(*bits, values_of(accuracies(questions, right)).get("macro"))


def cells(quality: Quality, reference: Quality) -> list[str]:
    """A row of the table, after the precision and its size."""
    pairs = zip(quality[:2], reference[:2], strict=True)
    bits = [f"{value:.4f} ({value / other - 1:+.2%})" if other else "–" for value, other in pairs]
    return [*bits, "–" if quality.skills is None else f"{quality.skills:.3f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "data/model")
    parser.add_argument("conversations", nargs="?", type=Path, default=ROOT / "data/chat/test.jsonl")
    parser.add_argument("--limit", type=int, default=400, help="conversations to measure, evenly spread over the file")
    parser.add_argument("--questions", type=int, default=5, help="of each skill")
    parser.add_argument("--threads", type=int, default=default_threads())
    options = parser.parse_args()
    test, tokenizer = read_test_set(options.conversations, options.limit), load_tokenizer(options.model)
    asked = sample_test_set(options.conversations, 1, options.questions, 0).questions
    questions = [one for one in asked if one.skill["phrasing"] == "known"]
    print("| precision | MB | bits/byte, all | bits/byte, assistant | skills |\n|---|---:|---:|---:|---:|")
    corpus = reference = None
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / "onnx"
        export_onnx.main(options.model, export, quantize=QUANTIZED)
        for precision, name in PRECISIONS.items():
            engine = load_engine(export, name, device="cpu", threads=options.threads)
            corpus = corpus or Corpus.from_records(test.records, tokenizer, engine.template)
            quality = measure(engine, corpus, questions)
            reference = reference or quality
            size = (export / ONNX_FILES[name]).stat().st_size / 1e6
            print(f"| {' | '.join([precision, f'{size:.2f}', *cells(quality, reference)])} |", flush=True)


if __name__ == "__main__":
    main()
