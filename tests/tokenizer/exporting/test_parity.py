"""The same ids from every export of every type, in chatmill and in the programs that the formats are for."""

import json
import pickle
import random
import struct
from functools import partial
from itertools import chain, pairwise

import pytest
import sentencepiece
import tiktoken
import tiktoken.load
from hypothesis import given, settings
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split

from chatmill.conversation import CONTROL_TOKENS, escape
from chatmill.tokenizer.exporting.parity import load_encoders
from chatmill.tokenizer.formats.tokenizer_loading import load, read_vocabulary
from chatmill.tokenizer.vocabulary.tokenizer_json import to_json
from support.paths import ROOT
from support.texts import BLANKS, FORGED, FRACTION, REAL, SAMPLE, TEXTS, real_lines

LANGUAGES = ROOT / "tests/tokenizer/types/languages.tsv"
parity = partial(settings, max_examples=150)


def runtime(exported, format):
    """The folder of exports; skips the test if the type does not have that format."""
    if "files" not in exported.formats[format]:
        assert exported.formats[format]["reason"]
        pytest.skip(f"{exported.name}: {exported.formats[format]['reason']}")
    return exported.out


@pytest.mark.parametrize("name", ["tokenizer.bin", "tokenizer.pkl", "tokenizer.tiktoken", "tokenizer.json"])
def test_what_is_read_back_has_the_same_fingerprint(exported, name):
    if not (exported.out / name).exists():
        pytest.skip(f"{exported.name} has no {name}")
    assert load(exported.out / name).vocabulary == exported.original.vocabulary


def read_sequentially(file, vocab_size, num_numbers):
    """What a C engine reads: numbers, then vocab_size records, and nothing of what follows."""
    with file.open("rb") as stream:
        numbers = struct.unpack(f"<{num_numbers}I", stream.read(4 * num_numbers))
        records = []
        for _ in range(vocab_size):
            score, length = struct.unpack("<fI", stream.read(8))
            assert length <= numbers[0]
            records.append((stream.read(length), score))
    return numbers, records


def read_ranks(out):
    about = json.loads((out / "tokenizer.tiktoken.json").read_text())
    ranks = tiktoken.load.load_tiktoken_bpe(str(out / "tokenizer.tiktoken"))
    values = {"pat_str": about["pattern"], "mergeable_ranks": ranks, "special_tokens": about["special_tokens"]}
    return tiktoken.Encoding(about["name"], **values).encode_ordinary


def read_binary(out):
    tokenizer = Tokenizer.from_str(to_json(read_vocabulary(out / "tokenizer.bin"), special=False))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def read_transformers(out):
    transformers = pytest.importorskip("transformers")
    return partial(transformers.AutoTokenizer.from_pretrained(out).encode, add_special_tokens=False)


READERS = {  # a folder of exports to the encoder of a format, in the library that it is for
    "binary": read_binary,
    "tiktoken_pickle": lambda out: pickle.loads((out / "tokenizer.pkl").read_bytes()).encode_ordinary,
    "tiktoken": read_ranks,
    "huggingface": read_transformers,
    "sentencepiece": lambda out: sentencepiece.SentencePieceProcessor(model_file=str(out / "tokenizer.model")).encode,
}


@pytest.mark.parametrize("format", READERS)
@parity(max_examples=100)
@given(text=TEXTS)
def test_every_format_gives_the_same_ids_in_its_library(exported, format, text):
    """Names of control tokens become control ids in transformers: the escape is what keeps them text."""
    out = runtime(exported, format)
    text = escape(text) if format == "huggingface" else text
    if exported.original.vocabulary.pattern is None:
        text = text.replace("\u2581", " ")
    encode = vars(exported).get(format) or vars(exported).setdefault(format, READERS[format](out))
    assert encode(text) == exported.original.encode(text)


def generated_texts(count=int(20_000 * FRACTION)):
    """Texts of some 1,000 bytes: words of many languages, any characters, naughty strings, runs, control names."""
    pick = random.Random(7)
    languages = LANGUAGES.read_text(encoding="utf-8").split()
    for _ in range(count):
        words, size = [], pick.randint(1, 200)
        while len(words) < size:
            match pick.randrange(8):
                case 0:
                    block = pick.randrange(0x110) << 8  # neighbours are of one script
                    words += ["".join(chr(block + pick.randrange(256)) for _ in range(6))]
                case 1:
                    words += [pick.choice(FORGED.split() + BLANKS)]
                case 2:
                    words += [pick.choice(CONTROL_TOKENS), pick.choice("ab \n.é中🙂\u0301") * pick.randint(1, 60)]
                case _:
                    words += pick.choices(languages, k=8)
        text = pick.choice([" ", "", "\n", "  "]).join(words)
        yield text.encode(errors="replace").decode()


@pytest.mark.slow
def test_twenty_megabytes_of_texts_give_the_same_everywhere(exported, record_property):
    """Every text in every runtime."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    real = real_lines(sample=SAMPLE) if REAL.exists() else []
    texts = [escape(text).replace("\u2581", " ") for text in chain(generated_texts(), real)]
    assert sum(len(text.encode()) for text in texts) > 20_000_000 * FRACTION
    original, out = exported.original, exported.out
    expected = original.encode(texts)
    for text, ids in zip(texts, expected, strict=True):
        assert b"".join(original.token_bytes[i] for i in ids) == text.encode()
    encoders = load_encoders(out)
    assert {"files" in exported.formats[name] for name in ("tiktoken_pickle", "tiktoken")} == {
        "tokenizer.pkl" in encoders
    }
    other = transformers.AutoTokenizer.from_pretrained(out)
    encoders["transformers"] = lambda texts: other(texts, add_special_tokens=False)["input_ids"]
    for name, encode in encoders.items():
        assert encode(texts) == expected, name
    record_property("cases", len(texts) * len(encoders))
    print(f"{exported.name}: {len(texts):,} texts in {', '.join(encoders)}")


def join_by_score(start, ids, records):
    """Merge the adjacent pair whose token scores best, until no pair makes a token."""
    parts = list(start)
    while True:
        pairs = [(records[ids[a + b]][1], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not pairs:
            return [ids[part] for part in parts]
        place = -max(pairs)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@parity(max_examples=60)
@given(text=TEXTS)
def test_greedy_readers_give_the_same_where_formats_json_says_so(exported, text):
    assert exported.formats["llama2c"]["exact"] == (exported.name in ("char", "byte", "bpe", "sentencepiece-bpe"))
    if not exported.formats["llama2c"]["exact"]:
        pytest.skip(exported.formats["llama2c"]["reason"])
    original = exported.original
    _, records = read_sequentially(exported.out / "tokenizer.llama2c.bin", original.vocab_size, 1)
    ids = {token: i for i, (token, _) in enumerate(records)}
    found = []
    split = Split(Regex(original.vocabulary.pattern or "\u2581|[^\u2581]+"), "removed", invert=True)
    for piece, _ in split.pre_tokenize_str(text[:500]):
        units = [bytes([byte]) for byte in piece.encode()]
        if exported.name in ("char", "sentencepiece-bpe"):
            characters = [character.encode() for character in piece]
            units = [u for c in characters for u in ([c] if c in ids else [bytes([b]) for b in c])]
        found += join_by_score(units, ids, records)
    assert found == original.encode(text[:500])


def test_all_that_read_a_tokenizer_json_take_names_of_control_tokens_for_the_tokens(exported):
    found = exported.formats["huggingface"]["readers"]
    assert set(found) == {"tokenizers", "transformers", "transformers.js", "ONNX Runtime GenAI"}
    assert all(each[0].get("example") == "<|bos|>" or "load" in each[0]["reason"] for each in found.values())
    assert found["transformers"][0]["example"] == "<|bos|>"
