"""Published tokenizers in the libraries that they were made for, from their own files.

tokenizer.json              `tokenizers`
*.tiktoken, ranks           tiktoken, with the publisher's pattern and special tokens
*.model, *.model.v3         sentencepiece, or tiktoken if the file holds ranks, as Llama 3's does
encoder.json, vocab.bpe     tiktoken, by OpenAI's own reader of these files
vocab.json, merges.txt      transformers' GPT2Tokenizer or RobertaTokenizer
vocab.txt                   transformers' BertTokenizer
tekken.json                 mistral_common, if it is installed
"""

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import tiktoken
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext import openai_public
from tokenizers import Tokenizer

Encode = Callable[[list[str]], list[list[int]]]

# The patterns as their publishers write them
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_AFTER_DIGITS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _AFTER_DIGITS
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _AFTER_DIGITS
LLAMA3_SPECIAL = [
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"),
    *("<|eot_id|>", "<|python_tag|>", "<|image|>", *(f"<|reserved_special_token_{2 + i}|>" for i in range(244))),
]
WHISPER_SPECIAL = ["<|endoftext|>", "<|startoftranscript|>"]  # the others depend on the model's version
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]


@dataclass(frozen=True)
class Original:
    """A tokenizer in its own library.

    `encode` finds the names of control tokens in text, if the library can; `encode_plain` takes them for text.
    """

    library: str
    encode_plain: Encode
    encode: Encode | None = None
    controls: dict[str, int] = field(default_factory=dict)  # tokens that only `encode` finds in text
    user_defined: dict[str, int] = field(default_factory=dict)  # tokens that both find in text

    @property
    def names(self) -> list[str]:
        """Of all added tokens."""
        return [*self.controls, *self.user_defined]


def open_original(file: Path, scratch: Path) -> Original:
    """The tokenizer in its library. Raises what the library raises for a file that it cannot read."""
    match file.name:
        case "encoder.json":
            ranks = data_gym_to_mergeable_bpe_ranks(str(file.with_name("vocab.bpe")), str(file))
            return _tiktoken(ranks, openai_public.r50k_pat_str, {"<|endoftext|>": 50256})
        case "vocab.json":
            return _vocabulary_and_merges(file, scratch)
        case name if name.endswith("vocab.txt"):
            from transformers import BertTokenizer

            entries = {line: number for number, line in enumerate(file.read_text("utf-8").splitlines())}
            return _tokenizers("transformers' BertTokenizer", BertTokenizer(entries)._tokenizer.to_str())
        case name if name.startswith("tekken"):
            return _tekken(file)
        case name if name.endswith(".json"):
            return _tokenizers("tokenizers", file.read_text("utf-8"))
        case "tokenizer.bin":
            raise ValueError("only its program in C reads it")
    if file.suffix == ".tiktoken" or _holds_ranks(file):
        return _published_ranks(file)
    return _sentencepiece(file)


def _holds_ranks(file: Path) -> bool:
    parts = file.read_bytes()[:2_000].split(b"\n")[0].split()
    return len(parts) == 2 and parts[1].isdigit()


def read_ranks(file: Path) -> dict[bytes, int]:
    """The ranks as the publishers' programs read them."""
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _published_ranks(file: Path) -> Original:
    """Ranks with the pattern and the special tokens of the publisher's program."""
    ranks, name = read_ranks(file), file.name.split(".")[0]
    if file.parent.name == "whisper_tiktoken":
        return _tiktoken(ranks, GPT2, _numbered(WHISPER_SPECIAL[: 1 + (b"" in ranks)], len(ranks)))
    if name == "qwen":
        return _tiktoken(ranks, QWEN, _numbered(QWEN_SPECIAL, len(ranks)))
    if file.name == "tokenizer.model":
        return _tiktoken(ranks, LLAMA3, _numbered(LLAMA3_SPECIAL, len(ranks)))
    openai_public.load_tiktoken_bpe = lambda *_, **__: ranks  # the file here in place of a download
    settings = openai_public.ENCODING_CONSTRUCTORS[name]()
    return _tiktoken(ranks, settings["pat_str"], settings["special_tokens"])


def _numbered(names: list[str], first: int) -> dict[str, int]:
    return {name: first + place for place, name in enumerate(names)}


def _tiktoken(ranks: dict[bytes, int], pattern: str, special: dict[str, int]) -> Original:
    encoding = tiktoken.Encoding("original", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    parsed: Encode = lambda texts: [encoding.encode(text, allowed_special="all") for text in texts]  # noqa: E731
    return Original("tiktoken", encoding.encode_ordinary_batch, parsed, special)


def _sentencepiece(file: Path) -> Original:
    """Its control pieces are never found in text, its user-defined ones always."""
    pieces, kinds = ModelProto.FromString(file.read_bytes()).pieces, ModelProto.SentencePiece
    controls = {one.piece: i for i, one in enumerate(pieces) if one.type in (kinds.CONTROL, kinds.UNKNOWN)}
    defined = {one.piece: i for i, one in enumerate(pieces) if one.type == kinds.USER_DEFINED}
    return Original("sentencepiece", SentencePieceProcessor(model_file=str(file)).encode, None, controls, defined)


def _tokenizers(library: str, content: str) -> Original:
    parsing, plain = Tokenizer.from_str(content), Tokenizer.from_str(content)
    plain.encode_special_tokens = True
    added = parsing.get_added_tokens_decoder()
    controls = {token.content: i for i, token in added.items() if token.special}
    others = {token.content: i for i, token in added.items() if not token.special}
    return Original(library, ids_of(plain), ids_of(parsing), controls, others)


def ids_of(tokenizer: Tokenizer) -> Encode:
    """Texts to ids, without the tokens that a post-processor puts around them."""
    return lambda texts: [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _vocabulary_and_merges(file: Path, scratch: Path) -> Original:
    from transformers import GPT2Tokenizer, RobertaTokenizer

    kind = RobertaTokenizer if "<mask>" in json.loads(file.read_bytes()) else GPT2Tokenizer
    folder = scratch / f"{file.parent.name}-{file.stem}-original"
    folder.mkdir(exist_ok=True)
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(file.with_name(name), folder / name)
    return _tokenizers(f"transformers' {kind.__name__}", kind.from_pretrained(folder)._tokenizer.to_str())


def _tekken(file: Path) -> Original:
    """Mistral's Tekken finds no control token in text."""
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tekken = Tekkenizer.from_file(file)
    controls = {tekken.id_to_piece(i): i for i in range(tekken.num_special_tokens)}
    return Original(
        "mistral_common", lambda texts: [tekken.encode(text, False, False) for text in texts], None, controls
    )
