"""Small tokenizers made of ranks, as other programs write them: `build_…(folder)` returns what `Built` describes."""

import base64
import json

import tiktoken

from chatmill.tokenizer.types import bpe
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from support import external_tokenizers
from support.external_tokenizers import Built, added, built, byte_level
from support.original_tokenizers import LLAMA3, LLAMA3_SPECIAL, open_original
from support.texts import SAMPLE_TEXT


def uneven_ranks():
    """Ranks in which a word precedes its beginning, as in Llama 3's: it is merged only inside longer pieces."""
    tokens = list(bpe.train([SAMPLE_TEXT * 2], 300, bpe.Settings(pattern="llama3")).tokens)
    words = [word.encode() for word in SAMPLE_TEXT.split() if len(word) > 4]
    tokens += [word[:stop] for word in words for stop in range(len(word), 1, -1)]
    return {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}


def write_ranks(file, ranks):
    """A token in base64 and its rank on each line."""
    file.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items()))


def build_every_split(folder):
    """Every split of every token as a merge; which of them are used follows from the ranks of all."""
    ranks, letters = uneven_ranks(), byte_letters()
    text = {token: "".join(map(letters.__getitem__, token)) for token in ranks}
    merges = []
    for token in ranks:
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [split for split in splits if split[0] in ranks and split[1] in ranks]
        merges += [
            [text[left], text[right]] for left, right in sorted(known, key=lambda one: (ranks[one[0]], ranks[one[1]]))
        ]
    content = byte_level()
    content["model"] |= {"vocab": {text[token]: rank for token, rank in ranks.items()}, "merges": merges}
    content["model"]["ignore_merges"] = True
    split = {"type": "Split", "pattern": {"Regex": PATTERNS["llama3"]}, "behavior": "Isolated", "invert": False}
    steps = [split, content["pre_tokenizer"] | {"use_regex": False}]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    content["added_tokens"] = [added(len(ranks) + i, name) for i, name in enumerate(LLAMA3_SPECIAL)]
    return built(folder, content)


def byte_letters():
    """Byte to its letter in the byte-level alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def build_ranks_model(folder):
    """Ranks under the name tokenizer.model, as Llama 3's; the control tokens follow them."""
    write_ranks(folder / "tokenizer.model", uneven_ranks())
    original = open_original(folder / "tokenizer.model", folder)
    return Built(folder / "tokenizer.model", lambda text: original.encode_plain([text])[0])


def build_empty_token(folder):
    """Ranks with a token of no bytes, as those of Whisper."""
    lines = folder / "multilingual.tiktoken"
    write_ranks(lines, ranks := uneven_ranks())
    lines.write_bytes(lines.read_bytes() + b"= %d\n" % len(ranks))
    encoding = tiktoken.Encoding(
        "w", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks | {b"": len(ranks)}, special_tokens={}
    )
    return Built(lines, encoding.encode_ordinary)


def build_tekken(folder):
    """Mistral's tekken.json: ranks, their pattern, and control tokens that take the first ids."""
    ranks, num_special = uneven_ranks(), 10
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in ranks.items()
    ]
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", *(f"<SPECIAL_{i}>" for i in range(5, num_special))]
    special = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)]
    config = {"pattern": LLAMA3, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) + num_special}
    config |= {"default_num_special_tokens": num_special, "version": "v7"}
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))
    encoding = tiktoken.Encoding("tekken", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    return Built(folder / "tekken.json", lambda text: [i + num_special for i in encoding.encode_ordinary(text)])


BUILDERS = {  # of both modules
    name.removeprefix("build_"): build
    for name, build in (vars(external_tokenizers) | globals()).items()
    if name.startswith("build_")
}
