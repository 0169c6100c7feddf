"""Write the tokenizer in every format that can express it."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch

from chatmill.manifest import write_manifest
from chatmill.stage import Output, stage
from chatmill.tokenizer.binary import write_binary
from chatmill.tokenizer.files import read_folder
from chatmill.tokenizer.huggingface import write_huggingface
from chatmill.tokenizer.llama2c import greedy_refusal, write_llama2c
from chatmill.tokenizer.ranks import refusal
from chatmill.tokenizer.tiktoken_files import description_file, write_tiktoken
from chatmill.tokenizer.tiktoken_pickle import write_tiktoken_pickle
from chatmill.tokenizer.vocabulary import Kind, Vocabulary

Format = Literal["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]
SPACE_MARK = "U+2581 in text is taken for a space; chatmill's own files keep it"


def export(format: Format, tokenizer: Path, vocabulary: Vocabulary, out: Path) -> dict[str, Any]:
    """Write one format into `out`: its files and whether all readers of them give the same ids, or why it cannot be."""
    match format:
        case "binary":
            write_binary(vocabulary, out / "tokenizer.bin")
            return _written("tokenizer.bin") | {"sequential_readers": _written(reason=greedy_refusal(vocabulary))}
        case "llama2c":
            write_llama2c(vocabulary, out / "tokenizer.llama2c.bin")
            return _written("tokenizer.llama2c.bin", reason=greedy_refusal(vocabulary))
        case "tiktoken_pickle" | "tiktoken" if (reason := refusal(vocabulary)) is not None:
            return {"reason": reason}
        case "tiktoken_pickle":
            write_tiktoken_pickle(vocabulary, out / "tokenizer.pkl")
            write_token_bytes(vocabulary, out / "token_bytes.pt")
            return _written("tokenizer.pkl", "token_bytes.pt")
        case "tiktoken":
            file = out / "tokenizer.tiktoken"
            write_tiktoken(vocabulary, file)
            return _written(file.name, description_file(file).name)
        case "huggingface":
            before = set(out.iterdir())
            write_huggingface(tokenizer, out, "chatml")
            names = sorted(file.name for file in set(out.iterdir()) - before)
            return _written(*names, reason=SPACE_MARK if vocabulary.pattern is None else None)
        case "sentencepiece":
            if not (tokenizer / "tokenizer.model").exists():
                return {"reason": f"a {vocabulary.type} tokenizer is no SentencePiece model"}
            shutil.copyfile(tokenizer / "tokenizer.model", out / "tokenizer.model")
            return _written("tokenizer.model", reason=SPACE_MARK)


def _written(*files: str, reason: str | None = None) -> dict[str, Any]:
    result: dict[str, Any] = {"files": list(files)} if files else {}
    return result | {"exact": reason is None} | ({} if reason is None else {"reason": reason})


def write_token_bytes(vocabulary: Vocabulary, file: Path) -> None:
    """Write how many bytes each token stands for, as nanochat reads it: int32 (V,), 0 for control and unused tokens.

    torch puts the file's name into its bytes: this is written under its own name, never renamed.
    """
    tokens = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    lengths = [len(token) if kind < Kind.CONTROL else 0 for token, kind in tokens]
    torch.save(torch.tensor(lengths, dtype=torch.int32), file)


@stage
def main(tokenizer: Path, out: Output, *, formats: list[Format]) -> None:
    """Read a tokenizer folder; write each format that it can have, and `formats.json`: which, and why not."""
    vocabulary = read_folder(tokenizer)
    out.mkdir(parents=True)
    written = {format: export(format, tokenizer, vocabulary, out) for format in formats}
    (out / "formats.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    write_manifest(out, kind="tokenizer", fingerprint=vocabulary.fingerprint)
