"""Shared parts of the benchmarks of training: data as the pipeline writes it, steps that fill a time, bits per byte.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median_low, quantiles
from time import perf_counter
from typing import Any, NamedTuple, Protocol

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import encode
import mix
import prepare
import score_teacher
import train_tokenizer
from chatmill.benchmarking import peak_bytes
from chatmill.checkpoints.configuration import ModelConfig
from chatmill.conversation import LossKind
from chatmill.encoded.token_files import read_meta, read_sources, read_split
from chatmill.evaluation.bits_per_byte import bits_per_byte, token_nats
from chatmill.model.chat_model import ChatModel, initialise
from chatmill.teacher.predictions import Predictions, read_predictions
from chatmill.tokenizer.vocabulary.tokenizer_folder import read_folder
from chatmill.training.hardware import choose_compile, choose_precision, set_up_compiler
from chatmill.training.new_model import count_bigrams, start_from_bigrams
from chatmill.training.optimizer import Optimizers, muon_adamw
from chatmill.training.packing import PackedDataset, truncate_conversations
from chatmill.training.plan import rows_at_once, short_rows
from chatmill.training.trainer import Trainer, keep_freed_memory

BATCH = 4096  # tokens a step


class Count(NamedTuple):
    """Tokens of a step: those that are trained on, and all of them with padding."""

    useful: int
    all: int


class Learner(Protocol):
    """A model and how it is trained."""

    model: torch.nn.Module

    def step(self, done: int, steps: int) -> Count:
        """Train one step, after `done` of `steps` steps."""

    def logits(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, V) float32 of the next tokens, each row from its own start."""


def make_data(
    folder: Path, sources: dict[str, Path], vocab_size: int, validation_share: float, tokenizer: str = "bpe"
) -> None:
    """Write tokens and their tokenizer, of this type, as the stages do; `sources` maps formats to files."""
    chat = [folder / f"{split}.jsonl" for split in ("train", "validation", "test")]
    for name, file in sources.items():
        out = folder / "prepared" / f"{name}.jsonl"
        out.parent.mkdir(exist_ok=True)
        written = (out, out.with_suffix(".rejects.jsonl"), out.with_suffix(".manifest.json"))
        prepare.main(*written, parameters={"path": file, "format": name, "max_reject_rate": 0.05})
    shares = {"validation_share": validation_share, "test_share": 0.01, "near_duplicates": False}
    mix.main(
        folder / "prepared",
        *chat,
        folder / "manifest.json",
        folder / "mix.json",
        prepare={name: {} for name in sources},
        **shares,
    )
    sizes = {"vocab_size": vocab_size, "special_tokens": []}
    parameters = {"type": tokenizer, **sizes}
    train_tokenizer.main(chat[0], Path("/"), Path("/"), folder / "tokenizer", initial=None, parameters=parameters)
    encode.main(*chat[:2], folder / "tokenizer", folder / "tokens", template="chatml")


@contextmanager
def prepared(
    sources: dict[str, Path], vocab_size: int, validation_share: float, tokenizer: str = "bpe"
) -> Iterator[str]:
    """A folder with what `make_data` writes; exits with one line where the data are unsuitable."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            make_data(Path(folder), sources, vocab_size, validation_share, tokenizer)
        except (ValueError, OSError) as error:
            sys.exit(str(error))
        yield folder


class Data:
    """The data that `make_data` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vocabulary = read_folder(folder / "tokenizer")
        self.special, self.num_bytes = self.vocabulary.special, np.array(self.vocabulary.byte_lengths)
        self.train, self.validation = (read_split(folder / "tokens", split) for split in ("train", "validation"))
        self.sources = read_sources(folder / "tokens", "train", read_meta(folder / "tokens"))

    @property
    def vocab_size(self) -> int:
        return len(self.num_bytes)

    def pack(self, context: int, teacher: dict[str, Any] | None = None) -> PackedDataset:
        """The train conversations, packed; with parameters of score_teacher, what it predicts beside them."""
        spans = truncate_conversations(self.train, context, "chatml", self.special)
        predictions = self.predictions(teacher) if teacher else None
        return PackedDataset(self.train, spans, context, self.special, sources=self.sources, teacher=predictions)

    def predictions(self, teacher: dict[str, Any]) -> Predictions | None:
        """What a teacher predicts, by the stage score_teacher; it is written once."""
        folder, tokens = self.folder / f"teacher {zlib.crc32(repr(teacher).encode())}", self.folder / "tokens"
        if not folder.exists():
            parameters = {"teacher": None, "ngram_order": None, "threads": torch.get_num_threads()} | teacher
            score_teacher.main(tokens, self.folder / "tokenizer", Path("/"), folder, **parameters)
        return read_predictions(folder, read_meta(tokens))[0]

    def bits_per_byte(self, logits: Callable[[Tensor], Tensor], context: int) -> tuple[float, float]:
        """Bits per byte of all held-out text, and of the assistant's; each conversation starts anew."""
        ids, _, offsets = self.validation
        conversations = np.split(ids.astype(np.int64), offsets[1:-1])
        return self.bits_of(np.concatenate(token_nats(conversations, context, partial(score, logits))))

    def bits_of(self, nats: np.ndarray) -> tuple[float, float]:
        """Bits per byte of all held-out text, and of the assistant's, by the nats (N,) of each token."""
        ids, loss, offsets = self.validation
        is_text, is_talk = self.num_bytes[ids] > 0, np.repeat(~self.validation.is_document, np.diff(offsets))
        chosen = is_text, is_text & is_talk & (loss == LossKind.TRAINED)
        return tuple(bits_per_byte(nats[some].sum(), int(self.num_bytes[ids[some]].sum())) for some in chosen)


@torch.no_grad()
def score(logits: Callable[[Tensor], Tensor], conversations: list[np.ndarray]) -> list[np.ndarray]:
    """The nats of all tokens but the first of each; conversations of similar length are computed together."""
    order = sorted(range(len(conversations)), key=lambda i: len(conversations[i]))
    result: list[np.ndarray] = [np.empty(0)] * len(conversations)
    for start in range(0, len(order), 8):
        some = order[start : start + 8]
        rows = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(conversations[i]) for i in some], batch_first=True)
        nats = F.cross_entropy(logits(rows[:, :-1]).transpose(1, 2), rows[:, 1:], reduction="none")
        for row, i in zip(nats.double().numpy(), some, strict=True):
            result[i] = row[: len(conversations[i]) - 1]
    return result


def planned(seconds: float, typical: float, limit: int | None) -> Iterator[tuple[int, int]]:
    """(done, steps) before each step: `limit` steps, or as many as fit into the time by the median of those done.

    `typical` is the expected seconds of the first step.
    """
    if limit:
        yield from ((done, limit) for done in range(limit))
        return
    end, times = perf_counter() + seconds, [typical]
    while (left := end - perf_counter()) > median_low(times) / 2:
        start, done = perf_counter(), len(times) - 1
        yield done, done + max(1, round(left / median_low(times)))
        times.append(perf_counter() - start)


def measure(
    learner: Learner, data: Data, context: int, seconds: float, limit: int | None = None, typical: float = 0.1
) -> dict[str, Any]:
    """The results of a learner after the time, or `limit` steps; the first is expected to take `typical` seconds."""
    counts, ends = [], [perf_counter()]
    for done, steps in planned(seconds, typical, limit):
        counts.append(learner.step(done, steps))
        ends.append(perf_counter())
    useful, everything = (sum(column) for column in zip(*counts, strict=True))
    peak, took = peak_bytes(), ends[-1] - ends[0]
    speeds = sorted(count.useful / time for count, time in zip(counts, np.diff(ends), strict=True))
    everything_bits, assistant_bits = data.bits_per_byte(learner.logits, context)
    return {
        "parameters": sum(weight.numel() for weight in learner.model.parameters()),
        "steps": len(counts),
        "seconds": took,
        "tokens": useful,
        "tokens_per_second": useful / took,
        "all_tokens_per_second": everything / took,
        "middle_of_steps": quantiles(speeds, n=10)[::8] if len(speeds) > 1 else speeds * 2,
        "peak_mb": peak / 1e6,
        "all": everything_bits,
        "assistant": assistant_bits,
    }


class Chatmill:
    """What the stage train_model does in the time, with other parts where they are given.

    `typical` is how many seconds a step takes that is not compiled: a long run is compiled. In the share
    `short_first` of the steps, rows have 256 tokens.
    """

    def __init__(
        self,
        data: Data,
        config: ModelConfig,
        seconds: float,
        typical: float = 0.1,
        *,
        seed: int = 1,
        precision: str = "auto",
        compile: str | bool = "auto",
        prompt_weight: float = 0.1,
        rate: float = 0.012,
        batch: int = BATCH,
        teacher: dict[str, Any] | None = None,
        teacher_weight: float = 0.7,
        start: str = "bigrams",
        short_first: float = 0.0,
        tied: bool = True,
        optimizer: Callable[..., Optimizers] = muon_adamw,
        trainer: Callable[..., Trainer] = Trainer,
    ) -> None:
        keep_freed_memory()
        set_up_compiler()
        self.dataset = data.pack(config.max_position_embeddings, teacher)
        parts = [(short_first, short_rows(self.dataset) or self.dataset)] if short_first else []
        parts += [(1.0, self.dataset)]
        self.parts = [(until, dataset, dataset.endless_rows(seed)) for until, dataset in parts]
        self.batch, self.vocab_size = batch, data.vocab_size
        self.model = ChatModel(replace(config, tie_word_embeddings=tied))
        initialise(self.model, seed)
        self.seed, self.starts_from_bigrams = seed, start == "bigrams"
        number_format, threads = choose_precision(precision), torch.get_num_threads()
        operations = 6 * sum(w.numel() for w in self.model.parameters()) * batch * seconds / typical
        self.trainer = trainer(
            self.model,
            optimizer(self.model, rate, getattr(torch, number_format)),
            torch.from_numpy(data.num_bytes),
            steps=1,
            prompt_weight=prompt_weight,
            precision=number_format,
            compiled=choose_compile(compile, number_format, operations, threads),
            teacher_weight=teacher_weight,
        )

    def step(self, done: int, steps: int) -> Count:
        if done == 0 and self.starts_from_bigrams:  # in the time of the first step
            start_from_bigrams(self.model, count_bigrams(self.dataset, self.seed), self.seed, self.trainer.precision)
        self.trainer.steps = steps
        dataset, rows = next(part for until, *part in self.parts if done < until * steps)
        per_step = self.batch // dataset.row_length
        at_once = rows_at_once(per_step, dataset.row_length, self.vocab_size)
        batches = dataset.batches(islice(rows, per_step), at_once)
        self.trainer.step(batches)
        useful = sum(int((batch.conversation_ids >= 0).sum()) for batch in batches)
        return Count(useful, sum(batch.ids.size for batch in batches))

    def logits(self, ids: Tensor) -> Tensor:
        return self.model(ids)


def run(file: str, options: dict[str, Any], threads: int, compiled: Path | None = None) -> dict[str, Any]:
    """The output of `file --run OPTIONS`, in a process of its own; `compiled` keeps what it compiles for later ones."""
    with tempfile.TemporaryDirectory() as empty:
        cache = str(compiled or empty)
        settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, file, "--run", json.dumps(options)]
        process = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, check=True)
    return json.loads(process.stdout)


def source(argument: str) -> tuple[str, Path]:
    """FORMAT=FILE of the command line."""
    name, _, file = argument.partition("=")
    if not Path(file).is_file():
        raise argparse.ArgumentTypeError(f"{argument}: expected FORMAT=FILE, with a file that exists")
    return name, Path(file)
