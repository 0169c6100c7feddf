"""Which readers of the exported tokenizers give other ids, compared with what formats.json says of them.

    python tests/benchmarks/readers.py CONVERSATIONS TEXTS [--packages FOLDER] [--node PROGRAM]

A tokenizer of each type and pattern is trained on CONVERSATIONS, such as data/chat/train.jsonl, and exported. Each line
of TEXTS is a text. Readers that are not installed are skipped; those in JavaScript are in FOLDER, after
`npm install --ignore-scripts @huggingface/transformers js-tiktoken tiktoken` there. `llama2.c` and `qwen3.c` are their
algorithms, written here. A row shows on how many texts a reader gives other ids or fails, and what formats.json says of
it; an example there on which it gives the same ids is marked.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import sentencepiece
import tiktoken
import tiktoken.load
import tokenizers

import export_tokenizer
import train_tokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from support.paths import ANY_FOLDER
from support.texts import NAUGHTY

TYPES: dict[str, tuple[str, dict[str, str]]] = {
    "whitespace": ("whitespace", {}),
    "char": ("char", {}),
    "byte": ("byte", {}),
    **{f"bpe, {pattern}": ("bpe", {"pattern": pattern}) for pattern in PATTERNS},
    "wordpiece": ("wordpiece", {}),
    "unigram": ("sentencepiece", {"algorithm": "unigram"}),
    "sentencepiece bpe": ("sentencepiece", {"algorithm": "bpe"}),
}
FORMATS = ["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]
VOCAB_SIZE, NUM_TEXTS, MOST_CHARACTERS = 2048, 2000, 300
NO_SCORE = -1e10  # of readers in C, below all scores
GENAI_CONFIG = {  # the least with which ONNX Runtime GenAI opens a tokenizer
    "model": {
        "type": "llama",
        **dict.fromkeys(("vocab_size", "context_length"), 64),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
        "decoder": {"filename": "model.onnx", "session_options": {"provider_options": []}, "inputs": {}, "outputs": {}}
        | dict.fromkeys(("head_size", "hidden_size"), 8)
        | dict.fromkeys(("num_attention_heads", "num_hidden_layers", "num_key_value_heads"), 1),
    },
    "search": {},
}

Ids = list[int]
Read = Callable[[Path, Vocabulary, list[str]], list[Ids]]


class Reader(NamedTuple):
    """A program that reads a format."""

    name: str
    format: str
    read: Read  # the ids of texts


def read_tokenizers(folder: Path, _: Vocabulary, texts: list[str]) -> list[Ids]:
    """The ids of Hugging Face's tokenizers."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]


def read_transformers(folder: Path, _: Vocabulary, texts: list[str]) -> list[Ids]:
    """The ids of transformers."""
    from transformers import AutoTokenizer

    ids: list[Ids] = AutoTokenizer.from_pretrained(folder)(texts, add_special_tokens=False)["input_ids"]
    return ids


def read_genai(folder: Path, _: Vocabulary, texts: list[str]) -> list[Ids]:
    """The ids of ONNX Runtime GenAI."""
    import onnxruntime_genai

    (folder / "genai_config.json").write_text(json.dumps(GENAI_CONFIG))
    tokenizer, ids = onnxruntime_genai.Tokenizer(str(folder)), []
    for text in texts:
        try:
            ids.append(tokenizer.encode(text).tolist())
        except RuntimeError:
            ids.append([])
    return ids


def read_tiktoken(folder: Path, _: Vocabulary, texts: list[str]) -> list[Ids]:
    """The ids of tiktoken."""
    about = json.loads((folder / "tokenizer.tiktoken.json").read_text())
    ranks = tiktoken.load.load_tiktoken_bpe(str(folder / "tokenizer.tiktoken"))
    values = {"pat_str": about["pattern"], "mergeable_ranks": ranks, "special_tokens": about["special_tokens"]}
    return tiktoken.Encoding(about["name"], **values).encode_ordinary_batch(texts)


def read_sentencepiece(folder: Path, _: Vocabulary, texts: list[str]) -> list[Ids]:
    """The ids of sentencepiece."""
    ids: list[Ids] = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).encode(texts)
    return ids


def read_javascript(name: str, packages: Path, node: str, folder: Path, _: Vocabulary, texts: list[str]) -> list[Ids]:
    """The ids of a library in JavaScript. Raises ValueError with the first line of its error."""
    program = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    command, given = [node, "--input-type=module", "-e", program], {"reader": name, "folder": str(folder.resolve())}
    result = subprocess.run(
        command, cwd=packages, input=json.dumps(given | {"texts": texts}), capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise ValueError(next((line for line in result.stderr.splitlines() if "Error" in line), result.stderr))
    ids: list[Ids] = json.loads(result.stdout)
    return ids


def read_in_c(engine: str, _: Path, vocabulary: Vocabulary, texts: list[str]) -> list[Ids]:
    """The ids of llama2.c's or qwen3.c's algorithm: any adjacent pair is merged, the best score first."""
    ids: dict[bytes, int] = {}
    for i, token in enumerate(vocabulary.tokens):
        ids.setdefault(token, i)
    return [_merge(_start(engine, ids, text), ids, vocabulary) for text in texts]


def _start(engine: str, ids: dict[bytes, int], text: str) -> Ids:
    """The ids before merging. Strings in C end at a zero byte."""
    data = text.partition("\0")[0].encode()
    if engine == "qwen3.c":
        parts = re.findall(rb"<[^>]{,62}>|.", data, re.DOTALL)
        whole = [[part] if part in ids else [bytes([byte]) for byte in part] for part in parts]
        return [ids[part] for some in whole for part in some if part in ids]
    parts = [char.encode() for char in data.decode()]
    found = [[ids[part]] if part in ids else [byte + 3 for byte in part] for part in parts]  # ids of Llama 2's bytes
    return [i for some in ([[ids.get(b" ", -1)]] if data else []) + found for i in some]


def _merge(text: Ids, ids: dict[bytes, int], vocabulary: Vocabulary) -> Ids:
    tokens, text = vocabulary.tokens, list(text)
    while True:
        pairs = [ids.get(tokens[a] + tokens[b], -1) for a, b in pairwise(text)]
        best = max(range(len(pairs)), key=lambda i: _score(pairs[i], vocabulary), default=-1)
        if best < 0 or pairs[best] < 0:
            return text
        text[best : best + 2] = [pairs[best]]


def _score(token: int, vocabulary: Vocabulary) -> float:
    return vocabulary.scores[token] if token >= 0 else NO_SCORE


def installed_readers(packages: Path | None, node: str) -> list[Reader]:
    """The readers that can be run here."""
    readers = [
        Reader("tokenizers", "huggingface", read_tokenizers),
        Reader("tiktoken", "tiktoken", read_tiktoken),
        Reader("sentencepiece", "sentencepiece", read_sentencepiece),
        Reader("llama2.c", "llama2c", partial(read_in_c, "llama2.c")),
        Reader("qwen3.c", "binary", partial(read_in_c, "qwen3.c")),
    ]
    if find_spec("transformers"):
        readers.append(Reader("transformers", "huggingface", read_transformers))
    if find_spec("onnxruntime_genai"):
        readers.append(Reader("ONNX Runtime GenAI", "huggingface", read_genai))
    for name, format, package in (
        ("transformers.js", "huggingface", "@huggingface/transformers"),
        ("js-tiktoken", "tiktoken", "js-tiktoken"),
        ("tiktoken (npm)", "tiktoken", "tiktoken"),
    ):
        if packages and (packages / "node_modules" / package).exists():
            key = name.removesuffix(" (npm)")
            readers.append(Reader(name, format, partial(read_javascript, key, packages, node)))
    return readers


def export(kind: str, section: dict[str, str], conversations: Path, folder: Path) -> None:
    """Train a tokenizer of a type and export it."""
    parameters = {"type": kind, "vocab_size": 320 if kind == "byte" else VOCAB_SIZE, kind: section}
    train_tokenizer.main(
        conversations,
        ANY_FOLDER,
        ANY_FOLDER,
        folder / "own",
        initial=None,
        parameters={"special_tokens": []} | parameters,
    )
    export_tokenizer.main(folder / "own", folder / "out", formats=FORMATS)


def compare(reader: Reader, folder: Path, texts: list[str], named: list[dict[str, str]]) -> str:
    """The number of texts with other ids, or the error, and what formats.json says."""
    own = load(folder / "own")
    try:
        found = reader.read(folder / "out", own.vocabulary, texts)
    except Exception as error:  # of libraries, which raise any
        result = f"does not load: {str(error).splitlines()[0]:.60}"
    else:
        pairs = zip(texts, found, own.encode(texts), strict=True)
        differing = sorted((text for text, ids, expected in pairs if ids != expected), key=len)
        result = f"{len(differing):,}" + (f", such as {differing[0]!a}" if differing else "")
    remarks = [f"{each['reason']}{confirmed(reader, folder, each.get('example'))}" for each in named]
    return f"{result} | {'; '.join(remarks)}".replace("|", "\\|").replace(" \\| ", " | ", 1)


def confirmed(reader: Reader, folder: Path, example: str | None) -> str:
    """The example in formats.json, and a remark where the reader does not differ on it."""
    if example is None:
        return ""
    own = load(folder / "own")
    try:
        [ids] = reader.read(folder / "out", own.vocabulary, [example])
    except Exception:  # as above
        return f" ({example!a})"
    return f" ({example!a}{'' if ids != own.encode(example) else ': NOT SO'})"


def main() -> None:
    """Print a table for each tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("conversations", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--packages", type=Path, help="a folder with node_modules")
    parser.add_argument("--node", default="node")
    options = parser.parse_args()
    lines = sorted({line[:MOST_CHARACTERS] for line in options.texts.read_text(encoding="utf-8").split("\n")})
    chosen = [text[:MOST_CHARACTERS] for text in NAUGHTY] + random.Random(1).sample(lines, min(NUM_TEXTS, len(lines)))
    readers = installed_readers(options.packages, options.node)
    print("| tokenizer | reader | texts with other ids | named in formats.json |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for name, (kind, section) in TYPES.items():
            folder = Path(scratch) / name
            export(kind, section, options.conversations, folder)
            formats = json.loads((folder / "out/formats.json").read_text(encoding="utf-8"))
            special = [*load(folder / "own").vocabulary.special]  # some readers take their names for the tokens
            texts = [text for text in chosen if not any(name in text for name in special)]
            for reader in (reader for reader in readers if "files" in formats[reader.format]):
                named = formats[reader.format].get("readers", {}).get(reader.name, [])
                print(f"| {name} | {reader.name} | {compare(reader, folder, texts, named)} |", flush=True)
    print(f"\n{len(texts)} texts", file=sys.stderr)


if __name__ == "__main__":
    main()
