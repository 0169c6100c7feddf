"""The speed of chatmill's tokenizers, compared with the underlying libraries, on one text in one run.

    python tests/benchmarks/tokenizer.py FILE [VOCAB_SIZE]

FILE is plain text; a tokenizer of each type is trained on its beginning and exported. Encoding is timed over all of it:
`texts` is a list of texts to lists of ids, `conversations` is what the stage `encode` does, with each text a message.
Both are multiples of the speed of the underlying library, called directly on the same texts: 1.00
is equally fast. Times are the best of several rounds in which the competitors alternate.
"""

import json
import pickle
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import sentencepiece
import tokenizers

import export_tokenizer
import train_tokenizer
from chatmill.conversation import Message, Record, conversation_segments, escape, render
from chatmill.tokenizer.formats.binary import BinaryTokenizer, read_binary
from chatmill.tokenizer.formats.tokenizer_loading import load

TYPES = {
    "whitespace": {},
    "char": {},
    "byte": {},
    "bpe": {},
    "wordpiece": {},
    "sentencepiece": {"algorithm": "unigram"},
}
FORMATS = ["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]
TEXT, TRAINING = 2_000, 10_000_000  # characters of one text, and of all training texts
ROUNDS, LOOKUPS = 5, 100_000

Actions = dict[str, Callable[[], Any]]


def best_times(actions: Actions, rounds: int = ROUNDS) -> dict[str, float]:
    """The least seconds of each action."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            action()  # refills the caches after the others
            start = perf_counter()
            action()
            best[name] = min(best[name], perf_counter() - start)
    return best


def make(kind: str, texts: list[str], vocab_size: int, folder: Path) -> tuple[Path, Path]:
    """Train a tokenizer of a type; return its folder, and that of its exports."""
    chat, source, out = folder / "chat.jsonl", folder / "source", folder / "tokenizer"
    sample = texts[: TRAINING // TEXT]
    lines = (
        Record("text", str(i), render([Message.from_text("user", text)])).to_json() for i, text in enumerate(sample)
    )
    folder.mkdir()
    chat.write_text("".join(lines), encoding="utf-8")
    parameters = {"type": kind, "vocab_size": vocab_size, "special_tokens": [], kind: TYPES[kind]}
    train_tokenizer.main(chat, Path("/"), Path("/"), source, initial=None, parameters=parameters)
    export_tokenizer.main(source, out, formats=FORMATS)
    return source, out


def bare_library(kind: str, out: Path) -> tuple[str, Callable[[list[str]], Any]]:
    """The underlying library of a type: its name, and its own function for many texts."""
    if (out / "tokenizer.pkl").exists():
        encoding = pickle.loads((out / "tokenizer.pkl").read_bytes())
        return "tiktoken", partial(encoding.encode_ordinary_batch, num_threads=1)
    if kind == "sentencepiece":
        processor = sentencepiece.SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
        return "sentencepiece", partial(processor.encode, num_threads=1)
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    return "tokenizers", lambda texts: [encoded.ids for encoded in tokenizer.encode_batch_fast(texts)]


def compare_encoding(kind: str, source: Path, out: Path, texts: list[str]) -> None:
    """Print one row."""
    ours = load(source)
    conversations = [conversation_segments([Message.from_text("user", text)]) for text in texts]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    library, bare = bare_library(kind, out)
    seconds = best_times(
        {
            "bare": partial(bare, texts),
            "texts": partial(ours.encode, texts),
            "conversations": partial(ours.encode_conversations, conversations),
        }
    )
    shares = [f"{seconds['bare'] / seconds[name]:9.2f}" for name in ("texts", "conversations")]
    print(f"{kind:14} {library:>14} {megabytes / seconds['bare']:8.1f} {shares[0]} {shares[1]:>14}")


def compare_access(source: Path, out: Path) -> None:
    """Print the times to open and to look up in each format, and the sizes of the files."""
    ours, library = load(source), tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    encoding, binary = pickle.loads((out / "tokenizer.pkl").read_bytes()), BinaryTokenizer(out / "tokenizer.bin")
    ids, table = random.Random(1).choices(range(ours.num_text), k=LOOKUPS), ours.token_bytes
    lookups = best_times(
        {
            "loaded table": lambda: [table[i] for i in ids],
            "mapped tokenizer.bin": lambda: [binary.token_bytes(i) for i in ids],
            "tiktoken": lambda: [encoding.decode_single_token_bytes(i) for i in ids],
            "tokenizers": lambda: [library.decode([i]) for i in ids],
        }
    )
    file = str(out / "tokenizer.json")
    opening = best_times(
        {
            "tokenizer.bin: open": lambda: BinaryTokenizer(out / "tokenizer.bin").close(),
            "tokenizer.bin: and one token": lambda: first_token(out / "tokenizer.bin", ids[0]),
            "tokenizer.bin: check all": lambda: verify(out / "tokenizer.bin"),
            "tokenizer.bin: read all": lambda: read_binary(out / "tokenizer.bin"),
            "tokenizer.pkl: unpickle": lambda: pickle.loads((out / "tokenizer.pkl").read_bytes()),
            "tokenizer.json: parse": lambda: json.loads(Path(file).read_bytes()),
            "tokenizer.json: tokenizers": lambda: tokenizers.Tokenizer.from_file(file),
        },
        rounds=20,
    )
    print("\none token to its bytes, ns")
    for name, seconds in lookups.items():
        print(f"  {name:28} {1e9 * seconds / LOOKUPS:10.0f}")
    print("\nready to look a token up, ms")
    for name, seconds in opening.items():
        print(f"  {name:28} {1e3 * seconds:10.3f} {seconds / opening['tokenizer.bin: open']:8.0f} x")
    print("\nsize, kB")
    for path in sorted(out.iterdir()):
        print(f"  {path.name:28} {path.stat().st_size / 1e3:10.1f}")


def first_token(file: Path, index: int) -> None:
    """Open a tokenizer.bin and look one token up, with the checks and the mapping that this takes."""
    with closing(BinaryTokenizer(file)) as binary:
        binary.token_bytes(index)


def verify(file: Path) -> None:
    """Check all checksums of a tokenizer.bin."""
    with closing(BinaryTokenizer(file)) as binary:
        binary.verify()


def main(file: str, vocab_size: str = "32768") -> None:
    """Print all tables."""
    text = escape(Path(file).read_text(encoding="utf-8"))
    texts = [text[start : start + TEXT] for start in range(0, len(text), TEXT)]
    with tempfile.TemporaryDirectory() as folder:
        folders = {kind: make(kind, texts, int(vocab_size), Path(folder, kind)) for kind in TYPES}
        print(f"{'type':14} {'library':>14} {'MB/s':>8} {'texts':>9} {'conversations':>14}")
        for kind, (source, out) in folders.items():
            compare_encoding(kind, source, out, texts)
        compare_access(*folders["bpe"])


if __name__ == "__main__":
    main(*sys.argv[1:])
