"""The ways between bytes and the model compared: bits per byte, clean and noisy, after equal time of training.

    python tests/benchmarks/soft_tokenizer.py [--data data] [--seconds S] [--depth D] [--threads N] [--seeds N]
                                              [--only NAME …] [--lines FILE]

It reads the conversations and the tokenizer that `dvc repro` wrote to the folder `data`. All ways train for the same
time, which their schedules span; `plugged in` and `tuned` start from the table of the same seed, and the latter trains
for a fifth of the time more. Nothing is compiled. Each row is the mean over the seeds, with half the distance of the
extremes. The time per token is that of a chat with the PyTorch engine, after 256 tokens. `--lines` also writes each run
as JSON.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from learning import BATCH, planned, run

import encode
import train_model
from chatmill.encoded.token_files import read_split, token_byte_lengths
from chatmill.engines.pytorch_engine import PyTorchEngine
from chatmill.evaluation.corpus import Corpus
from chatmill.model.chat_model import ChatModel
from chatmill.pipeline.params_file import read_params
from chatmill.record_files import read_records
from chatmill.soft_tokenizer.byte_embedding import ByteEncoderShape, use_byte_embedding, use_embedding_table
from chatmill.soft_tokenizer.embedding_evaluation import (
    NOISE_KINDS,
    add_noise,
    embedding_table,
    make_byte_embedding,
    measure_bits_per_byte,
    with_embedding_table,
)
from chatmill.soft_tokenizer.encoder_training import RIDGE_ALL, EmbeddingDataset, fit_encoder
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.types import byte
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, read_folder, write_folder
from chatmill.training.hardware import choose_precision
from chatmill.training.optimizer import muon_adamw
from chatmill.training.packing import PackedDataset, truncate_conversations
from chatmill.training.plan import rows_at_once
from chatmill.training.train_parameters import TrainParameters
from chatmill.training.trainer import Trainer, keep_freed_memory

CONTEXT, TESTED, PROMPT, TIMED = 1024, 600, 256, 100
PARAMS = Path(__file__).parents[2] / "params.yaml"
TUNING = 0.2  # of the time of training
PLAIN = {"steps": 1, "batch_size": CONTEXT, "prompt_loss_weight": 0.1, "threads": 1}
PLAIN |= {"precision": "auto", "compile": "auto"}
LEARNING_RATE = 0.012
WHOLE = {"features": 1792, "steps": 120}  # of the soft tokenizer: with the pipeline's few steps it is worse
OWN, BYTES = "of the pipeline", "byte"
WAYS: dict[str, dict[str, Any]] = {
    "table": {},
    "table, not tied": {"tie_embeddings": False},
    "bytes": {"embedding": "bytes"},
    "bytes, not tied": {"embedding": "bytes", "tie_embeddings": False},
    "bytes, aligned 0.1": {"embedding": "bytes", "tie_embeddings": False, "head_alignment": 0.1},
    "bytes, aligned 1": {"embedding": "bytes", "tie_embeddings": False, "head_alignment": 1.0},
    "byte tokenizer": {"tokenizer": BYTES},
    "byte tokenizer, fixed chunks": {"tokenizer": BYTES, "chunking": "fixed"},
    "byte tokenizer, learned chunks": {"tokenizer": BYTES, "chunking": "learned"},
    "byte tokenizer, chunks of an autoencoder": {"tokenizer": BYTES, "chunking": "autoencoder"},
}
PLUGGED, TUNED = "plugged in", "tuned"


class Data:
    """The conversations as tokens of one tokenizer."""

    def __init__(self, tokens: Path, test: Path) -> None:
        self.vocabulary = read_folder(tokens / "tokenizer")
        split, special = read_split(tokens / "tokens", "train"), self.vocabulary.special
        spans = truncate_conversations(split, CONTEXT, "chatml", special)
        row_length = min(CONTEXT, 64 * -(-int(spans.packed_lengths.max()) // 64))
        self.dataset = PackedDataset(
            split, truncate_conversations(split, row_length, "chatml", special), row_length, special
        )
        records = list(read_records(test))
        self.records = records[:: max(1, len(records) // TESTED)]

    def trainer(self, model: ChatModel, rate: float) -> Trainer:
        """A trainer of a model on these conversations."""
        precision = choose_precision("auto")
        return Trainer(
            model,
            muon_adamw(model, rate, getattr(torch, precision)),
            torch.from_numpy(token_byte_lengths(self.vocabulary)),
            steps=1,
            prompt_weight=0.1,
            precision=precision,
            compiled=False,
        )

    def learn(self, model: ChatModel, seconds: float, seed: int, rate: float) -> int:
        """Train a model for the time; return the number of steps."""
        trainer, rows = self.trainer(model, rate), self.dataset.endless_rows(seed)
        rows_per_step = BATCH // self.dataset.row_length
        at_once = rows_at_once(rows_per_step, self.dataset.row_length, len(self.vocabulary.tokens))
        for _, steps in planned(seconds, 0.5, None):
            trainer.steps = steps
            trainer.step(self.dataset.batches([next(rows) for _ in range(rows_per_step)], at_once))
        return trainer.completed_steps

    def measure(self, model: ChatModel) -> dict[str, float]:
        """Bits per byte of held-out conversations, as they are and with noise; and milliseconds per token."""
        tokenizer, model = ChatTokenizer(self.vocabulary), model.eval()
        texts = {"clean": self.records} | {kind: add_noise(self.records, kind) for kind in NOISE_KINDS}
        corpora = {name: Corpus.from_records(text, tokenizer, "chatml") for name, text in texts.items()}
        bits = {name: measure_bits_per_byte(model, corpus, trained_only=False) for name, corpus in corpora.items()}
        return {name: values["all"] for name, values in bits.items()} | {
            "assistant": bits["clean"]["assistant"],
            "token_ms": token_ms(model, corpora["clean"].ids[:PROMPT].tolist()),
            "tokens_per_byte": float(corpora["clean"].is_scored.sum() / corpora["clean"].num_bytes.sum()),
            "parameters": sum(weight.numel() for weight in model.parameters()),
        }


def token_ms(model: ChatModel, prompt: list[int]) -> float:
    """The median time of a token that is read after a prompt."""
    engine, times = PyTorchEngine(model, device="cpu", threads=torch.get_num_threads()), []
    token = int(engine.append(prompt).argmax())
    for _ in range(TIMED):
        started = perf_counter()
        token = int(engine.append([token]).argmax())
        times.append(perf_counter() - started)
    return 1e3 * median(times)


def write_data(source: Path, folder: Path) -> None:
    """Write the pipeline's conversations as tokens of its own tokenizer, and as bytes."""
    vocabularies = {
        OWN: read_folder(source / "tokenizer"),
        BYTES: add_special_tokens(byte.train([], 256, byte.Settings()), []),
    }
    for name, vocabulary in vocabularies.items():
        (folder / name).mkdir()
        write_folder(vocabulary, folder / name / "tokenizer")
        chats = (source / f"chat/{split}.jsonl" for split in ("train", "validation"))
        encode.main(*chats, folder / name / "tokenizer", folder / name / "tokens", template="chatml")


def train(folder: str, test: str, way: str, seed: int, seconds: float, depth: int) -> list[dict[str, Any]]:
    """The results of one way; with those of the ways that start from the table, if it is that."""
    keep_freed_memory()
    changes = dict(WAYS[way])
    data = Data(Path(folder, changes.pop("tokenizer", OWN)), Path(test))
    shape = {"context": CONTEXT, "depth": depth, "seed": seed}
    options = TrainParameters(**PLAIN | changes | shape)
    model = train_model.new_model(options, data.vocabulary, needed=lambda config: 0, available=1)
    model.head_alignment = options.head_alignment
    started = perf_counter()
    steps = data.learn(model, seconds, seed, LEARNING_RATE)
    result = [{"way": way, "seed": seed, "steps": steps, "seconds": perf_counter() - started}]
    use_embedding_table(model)
    result[0] |= data.measure(model)
    return result + (list(replace_table(model, data, seed, seconds)) if way == "table" else [])


def replace_table(model: ChatModel, data: Data, seed: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Replace the table by a byte encoder; then train both further."""
    started, vocabulary, table = perf_counter(), data.vocabulary, embedding_table(model)
    counts = np.bincount(data.dataset.split.ids, minlength=len(vocabulary.tokens))
    pairs = EmbeddingDataset.from_table(vocabulary, table, counts, longest=32, held_out=0.1, seed=seed)
    params = read_params(PARAMS)["train_soft_tokenizer"] | WHOLE
    shape = ByteEncoderShape(ngrams=0, **{name: params[name] for name in ("width", "layers", "features", "longest")})
    options = {"steps": params["steps"], "contrast": params["contrast"], "ridge": RIDGE_ALL, "seed": seed}
    encoder = fit_encoder(shape, pairs, torch.ones_like(pairs.held_out), **options)
    plugged = with_embedding_table(model, make_byte_embedding(encoder, vocabulary, table).weight)
    yield {"way": PLUGGED, "seed": seed, "seconds": perf_counter() - started} | data.measure(plugged)
    tuned = with_embedding_table(model, table)
    use_byte_embedding(tuned, deepcopy(encoder), vocabulary)
    steps = data.learn(tuned, TUNING * seconds, seed + 1, LEARNING_RATE / 4)
    use_embedding_table(tuned)
    yield {"way": TUNED, "seed": seed, "steps": steps, "seconds": TUNING * seconds} | data.measure(tuned)


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The rows of a table in Markdown."""
    columns = ("clean", "assistant", *NOISE_KINDS)
    yield f"| | {' | '.join(columns)} | parameters | seconds | ms a token | tokens a byte |"
    yield "|---" * (len(columns) + 5) + "|"
    for way in dict.fromkeys(line["way"] for line in lines):
        runs = [line for line in lines if line["way"] == way]
        bits = [[line[name] for line in runs] for name in columns]
        cells = [f"{mean(values):.3f} ± {(max(values) - min(values)) / 2:.3f}" for values in bits]
        cells.append(f"{runs[0]['parameters'] / 1e6:.2f} M")
        cells += [f"{mean(line[name] for line in runs):.2f}" for name in ("seconds", "token_ms", "tokens_per_byte")]
        yield f"| {way} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="NAME")
    parser.add_argument("--lines", type=Path)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        write_data(options.data, Path(folder))
        for seed in range(1, options.seeds + 1):
            for way in options.only:
                common = {"folder": folder, "test": str(options.data / "chat/test.jsonl"), "depth": options.depth}
                arguments = common | {"way": way, "seed": seed, "seconds": options.seconds}
                for line in run(__file__, arguments, options.threads):
                    lines.append(line)
                    print(json.dumps(line), file=sys.stderr)
                    if options.lines:
                        with options.lines.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(line) + "\n")
    print("\n".join(table(lines)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(train(**json.loads(sys.argv[2]))))
    else:
        main()
