"""How much memory and time the stages of data take of more and more text, and what a second process brings.

    python tests/benchmarks/scale.py [--gb GB …] [--workers N …] [--engine NAME …]
        [--near-duplicates] [--folder FOLDER]

For each size it writes that much of generated chats to a file of JSON lines, compressed with zstd, and runs prepare,
mix, train_tokenizer and encode one after another, each with each number of workers ($CHATMILL_WORKERS) of each engine
($CHATMILL_ENGINE), which have to write the same bytes. The words are those of data/raw/talk.jsonl, as often as they
occur there, so that the chats are no language but have its vocabulary; none is a duplicate. MB are those of JSON lines
before compression for prepare, and of what the stage before has written for the others. "CPU" is the time of all
processes, but for those of Ray and Slurm, "first" that of the one that the others work for, and the peak that of the
largest. Files are removed as soon as they are measured: FOLDER needs about four times the size.
"""

import argparse
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from data import SPAWN, measure

from chatmill.pipeline.parts import size_of
from chatmill.shards.workers import ENGINES

ROOT = Path(__file__).parents[2]
PARAMS = """\
prepare: {{chats: {{path: chats.jsonl.zst, format: messages}}}}
mix: {{validation_share: 0.01, test_share: 0.01, near_duplicates: {near}, part_bytes: 256000000}}
train_tokenizer: {{type: bpe, vocab_size: 8192, special_tokens: [], max_bytes: 2000000000,
  bpe: {{pattern: qwen2, trainer: rustbpe, buffer_size: 8192}}}}
encode: {{template: chatml, part_tokens: 100000000}}
"""
COMMANDS = {
    "prepare": "prepared/chats.jsonl prepared/chats.rejects.jsonl prepared/chats.manifest.json",
    "mix": "--prepared prepared --train chat/train.jsonl --validation chat/validation.jsonl --test chat/test.jsonl "
    "--manifest chat/manifest.json --metrics metrics/mix.json",
    "train_tokenizer": "chat/train.jsonl none tokenizer",
    "encode": "--train chat/train.jsonl --validation chat/validation.jsonl --tokenizer tokenizer --tokens tokens",
}
WRITTEN = {
    "prepare": ("prepared",),
    "mix": ("chat", "metrics"),
    "train_tokenizer": ("tokenizer",),
    "encode": ("tokens",),
}
READ = {"mix": "prepared/chats.jsonl", "train_tokenizer": "chat/train.jsonl", "encode": "chat/train.jsonl"}
NO_LONGER_READ = {"mix": "prepared", "encode": "chat"}  # after the stage
CHATS = 10_000  # that are written at once


def write_chats(size: int, out: Path) -> None:
    """Write generated chats of about `size` bytes as JSON lines, and their exact number to a file `bytes` beside it."""
    pieces = [out.with_name(f"piece-{number}") for number in range(os.cpu_count() or 1)]
    with SPAWN.Pool() as pool:
        written = pool.starmap(write_piece, [(size // len(pieces), piece, seed) for seed, piece in enumerate(pieces)])
    with out.open("wb") as target:
        for piece in pieces:  # each is a frame of zstd
            with piece.open("rb") as source:
                shutil.copyfileobj(source, target)
            piece.unlink()
    out.with_name("bytes").write_text(str(sum(written)))


def write_piece(size: int, out: Path, seed: int) -> int:
    """Write generated chats of about `size` bytes; returns their exact number."""
    import numpy as np  # here, as a stage's peak begins with the memory of the process that starts it
    import zstandard

    random, written = np.random.default_rng(seed), 0
    words = np.array(
        [
            word
            for line in (ROOT / "data/raw/talk.jsonl").open(encoding="utf-8")
            for message in json.loads(line)["messages"]
            for word in message["content"].split()
        ]
    )
    with out.open("wb") as target, zstandard.ZstdCompressor(level=1).stream_writer(target) as compressed:
        while written < size:
            lines = []
            for turns in random.integers(1, 6, CHATS):
                lengths = random.integers(4, 40, 2 * turns)
                said = np.split(words[random.integers(0, len(words), lengths.sum())], np.cumsum(lengths)[:-1])
                texts = [" ".join(part.tolist()) for part in said]
                messages = [
                    {"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)
                ]
                lines.append(json.dumps({"messages": messages}) + "\n")
            block = "".join(lines).encode()
            compressed.write(block)
            written += len(block)
    return written


def digest(folder: Path, names: tuple[str, ...]) -> str:
    """The hash of all files of some folders."""
    total = hashlib.sha256()
    for file in sorted(file for name in names for file in (folder / name).rglob("*") if file.is_file()):
        total.update(str(file.relative_to(folder)).encode())
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


def main(
    gigabytes: list[float], workers: list[int], engines: list[str], parent: Path | None, *, near: bool = False
) -> None:
    """Print a row for each stage, size, engine and number of workers."""
    measured = f"{'MB/s':>8}{'MB/s of CPU':>13}{'peak MB':>9}{'first s':>9}{'times':>7}"
    print(f"{'stage':18}{'GB':>6}{'workers':>14}{measured}  output")
    ways = [(count, engine) for engine in engines for count in workers]
    for size in gigabytes:
        with tempfile.TemporaryDirectory(dir=parent) as scratch:
            folder = Path(scratch)
            (folder / "params.yaml").write_text(PARAMS.format(near=str(near).lower()))
            (folder / "none").mkdir()
            write_chats(int(1e9 * size), folder / "chats.jsonl.zst")
            raw = int((folder / "bytes").read_text())
            for stage in COMMANDS:
                run_stage(stage, folder, size, raw, ways)
                if stage == "prepare":
                    (folder / "chats.jsonl.zst").unlink()
                if stage in NO_LONGER_READ:
                    shutil.rmtree(folder / NO_LONGER_READ[stage])


def run_stage(stage: str, folder: Path, size: float, raw: int, ways: list[tuple[int, str]]) -> None:
    """Print a row for each number of workers and engine; the outputs of the last one remain."""
    read = size_of(folder / READ[stage]) if stage in READ else raw
    first, seconds = "", 0.0
    for count, engine in ways:
        for name in WRITTEN[stage]:
            shutil.rmtree(folder / name, ignore_errors=True)
        command = [str(ROOT / "stages" / f"{stage}.py"), *COMMANDS[stage].split()]
        took = measure(command, folder, CHATMILL_WORKERS=str(count), CHATMILL_ENGINE=engine)
        written = digest(folder, WRITTEN[stage])
        first, seconds = first or written, seconds or took.clock
        same = "the same" if written == first else "ANOTHER"
        speeds = f"{read / 1e6 / took.clock:8.1f}{read / 1e6 / took.processor:13.1f}"
        others = f"{took.peak:9.0f}{took.first:9.1f}{seconds / took.clock:7.2f}  {same}"
        print(f"{stage:18}{size:6g}{f'{count} {engine}':>14}{speeds}{others}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--engine", choices=ENGINES, nargs="+", default=["local"])
    parser.add_argument("--near-duplicates", action="store_true")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    main(arguments.gb, arguments.workers, arguments.engine, arguments.folder, near=arguments.near_duplicates)
