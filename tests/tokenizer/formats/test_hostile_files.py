import io
import json
import math
import os
import pickle
import re
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, pairwise

import pytest
import tiktoken
from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from chatmill.tokenizer.formats.binary import MAGIC, write_binary
from chatmill.tokenizer.formats.llama2c import write_llama2c
from chatmill.tokenizer.formats.tiktoken_files import description_file, write_tiktoken, write_tiktoken_pickle
from chatmill.tokenizer.formats.tokenizer_loading import read_vocabulary
from chatmill.tokenizer.vocabulary.patterns import PATTERNS, bounded
from chatmill.tokenizer.vocabulary.preprocessing import from_tokenizers_json
from chatmill.tokenizer.vocabulary.sentencepiece_model import from_model_proto, to_model_proto
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.tokenizer_json import to_json, write_tokenizer_json
from chatmill.tokenizer.vocabulary.vocabulary import NO_RANK, Kind, Vocabulary, byte_level_vocabulary, rank_scores
from support import mutate_tokenizers
from support.mutate_tokenizers import GOOD
from support.paths import SOURCE
from support.texts import FRACTION

BYTES = [bytes([byte]) for byte in range(256)]
CHINESE = "中".encode()
WORDS = [b"th", b"the", b" the", b" th", "é".encode(), CHINESE[:2], CHINESE]


def wordpiece():
    tokens = (*BYTES, *BYTES, *WORDS, b"he", b"af")
    kinds = (Kind.NORMAL,) * 256 + (Kind.CONTINUATION,) * 256 + (Kind.NORMAL,) * len(WORDS) + (Kind.CONTINUATION,) * 2
    pattern = bounded(PATTERNS["qwen2"])
    return add_special_tokens(
        Vocabulary("wordpiece", "wordpiece", pattern, tokens, kinds, rank_scores(tokens, kinds)), []
    )


def sentencepiece(algorithm):
    tokens = (*BYTES, *BYTES[32:127], *(word for word in WORDS if word != CHINESE[:2]))
    kinds = (Kind.FALLBACK,) * 256 + (Kind.NORMAL,) * (len(tokens) - 256)
    ids = {token: i for i, token in enumerate(tokens) if kinds[i] == Kind.NORMAL}
    if algorithm == "viterbi":
        scores = tuple(NO_RANK if i < 256 else -i / 64 for i in range(len(tokens)))
        return add_special_tokens(Vocabulary("sentencepiece", algorithm, None, tokens, kinds, scores), [])
    parts = [(b"t", b"h"), (b"th", b"e"), (b" ", b"the"), (b" ", b"th")]
    merges = tuple((ids[left], ids[right]) for left, right in parts)
    return add_special_tokens(
        Vocabulary("sentencepiece", algorithm, None, tokens, kinds, rank_scores(tokens, kinds, merges), merges), []
    )


def trained_model():
    """A model that changes text: by a table, by a space before it, and by removing spaces."""
    trained = io.BytesIO()
    with tempfile.NamedTemporaryFile(suffix=".tsv") as rules:
        rules.write(b"FF21\t41\n3000\t20\n")
        rules.flush()
        SentencePieceTrainer.train(
            sentence_iterator=iter(["the user said that there was weather in the café"] * 5),
            model_writer=trained,
            vocab_size=300,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_tsv=rules.name,
            num_threads=1,
            minloglevel=2,
        )
    return trained.getvalue()


BPE = add_special_tokens(byte_level_vocabulary(WORDS, "bpe", "merge", PATTERNS["qwen2"]), [])
CHARS = add_special_tokens(byte_level_vocabulary(["é".encode(), CHINESE], "char", "lookup", r"[\s\S]"), [])
TRAINED = trained_model()
CHANGING = from_model_proto(ModelProto.FromString(TRAINED))
LOWERCASE = replace(BPE, steps=from_tokenizers_json({"normalizer": {"type": "Lowercase"}}))
WORDPIECE, UNIGRAM, SENTENCEPIECE = wordpiece(), sentencepiece("viterbi"), sentencepiece("merge")
SECONDS = 10  # in which a tokenizer is read and short texts are encoded
EXPECTED = ("lossless", "refused")


def write_strings(vocabulary, file):
    """Write merges as strings, as in older files."""
    write_tokenizer_json(vocabulary, file)
    content = json.loads(file.read_text())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    file.write_text(json.dumps(content))


def write_unnamed_ranks(vocabulary, file):
    """Write ranks without the name that holds the fingerprint, so that changes are not found by it."""
    text, special = vocabulary.tokens[: vocabulary.num_text], vocabulary.tokens[vocabulary.num_text :]
    file.write_bytes(b"".join(b"%s %d\n" % (b64encode(token), i) for i, token in enumerate(text)))
    names = {token.decode(): i for i, token in enumerate(special, start=len(text))}
    description = {"name": "own", "pattern": vocabulary.pattern, "special_tokens": names}
    description_file(file).write_text(json.dumps(description))


def write_unnamed_pickle(vocabulary, file):
    text, special = vocabulary.tokens[: vocabulary.num_text], vocabulary.tokens[vocabulary.num_text :]
    ranks = {token: i for i, token in enumerate(text)}
    names = {token.decode(): i for i, token in enumerate(special, start=len(text))}
    own = tiktoken.Encoding("own", pat_str=vocabulary.pattern, mergeable_ranks=ranks, special_tokens=names)
    file.write_bytes(pickle.dumps(own, 4))


def write_model(vocabulary, file):
    file.write_bytes(TRAINED if vocabulary is CHANGING else to_model_proto(vocabulary))


def write_entries(_, file):
    """The vocabulary of a small BERT."""
    letters = [chr(code) for code in range(33, 127)]
    special, inside = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], [f"##{letter}" for letter in letters]
    file.write_text("\n".join([*special, *letters, *inside, "the", "##he", "cafe", "中"]) + "\n")


def write_plain_wordpiece(_, file):
    write_entries(None, file.with_name("vocab.txt"))
    write_tokenizer_json(read_vocabulary(file.with_name("vocab.txt")), file)
    file.with_name("vocab.txt").unlink()


def write_pair(vocabulary, file):
    """encoder.json, and vocab.bpe beside it."""
    model = json.loads(to_json(vocabulary, special=False))["model"]
    file.write_text(json.dumps(model["vocab"]))
    merges = (" ".join(merge) for merge in model["merges"])
    file.with_name("vocab.bpe").write_text("\n".join(["#version: 0.2", *merges]) + "\n")


JSON = write_tokenizer_json
EVERY = (BPE, CHARS, LOWERCASE, WORDPIECE, UNIGRAM, SENTENCEPIECE, CHANGING)
ORIGINALS = {  # the file's name, and what is written into it by which function
    "bpe": ("tokenizer.json", [(JSON, BPE), (JSON, CHARS), (JSON, LOWERCASE), (write_strings, BPE)]),
    "wordpiece": ("tokenizer.json", [(JSON, WORDPIECE), (write_plain_wordpiece, None)]),
    "unigram": ("tokenizer.json", [(JSON, UNIGRAM), (JSON, SENTENCEPIECE), (JSON, CHANGING)]),
    "tiktoken": ("t.tiktoken", [(write_tiktoken, BPE), (write_tiktoken, CHARS), (write_unnamed_ranks, BPE)]),
    "pkl": ("t.pkl", [(write_tiktoken_pickle, BPE), (write_tiktoken_pickle, CHARS), (write_unnamed_pickle, BPE)]),
    "bin": ("t.bin", [(write_binary, one) for one in EVERY]),
    "model": ("t.model", [(write_model, one) for one in (UNIGRAM, SENTENCEPIECE, CHANGING)]),
    "pair": ("encoder.json", [(write_pair, BPE)]),
    "entries": ("vocab.txt", [(write_entries, None)]),
}


def read_mutations(folder, name, first, last):
    """The outcome of each mutation from `first` up to `last`; after one that ends the process, another continues."""
    results = []
    while first < last:
        command = [sys.executable, mutate_tokenizers.__file__, folder / name, folder / "mutated", str(first), str(last)]
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "TOKENIZERS_PARALLELISM": "false"}
        run = subprocess.run(command, cwd=folder / "empty", env=environment, capture_output=True, text=True)
        ready, *lines = run.stdout.splitlines() or [""]
        assert ready == "ready", run.stderr
        results += map(json.loads, lines)
        first += len(lines)
        if first < last:
            stack = run.stderr.rpartition("(most recent call first):")[2][:600]
            results.append({"number": first, "outcome": f"died ({run.returncode}):{stack}", "grown_mib": 0})
            first += 1
    return results


def check_mutations(folder, name, count, processes):
    file, written = ORIGINALS[name]
    for number, (write, vocabulary) in enumerate(written):
        original = folder / name / str(number)
        original.mkdir(parents=True)
        write(vocabulary, original / file)
    (folder / "empty").mkdir()
    (folder / "mutated").mkdir()
    borders = [count * i // processes for i in range(processes + 1)]
    with ThreadPoolExecutor(2) as pool:
        results = chain(*pool.map(lambda ends: read_mutations(folder, name, *ends), pairwise(borders)))
    results = list(results)
    outcomes = Counter(result["outcome"] for result in results)
    grown = max(result["grown_mib"] for result in results)
    print({outcome: outcomes[outcome] for outcome in GOOD}, f"{grown} MiB")
    wrong = [result for result in results if result["outcome"] not in GOOD]
    assert not wrong, "\n".join(f"{folder}/mutated/{one['number']}: {one['outcome']}" for one in wrong[:20])
    assert not any((folder / "empty").iterdir())
    assert grown < 300
    assert outcomes["refused"] < count * 0.99


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_mutated_file_is_refused_or_works(name, tmp_path):
    check_mutations(tmp_path, name, 120, processes=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ORIGINALS)
def test_ten_thousand_mutated_files_are_refused_or_work(name, tmp_path):
    check_mutations(tmp_path, name, int(10_000 * FRACTION), processes=4)


def write_content(folder, change, vocabulary=BPE):
    """A tokenizer.json after a change of its content."""
    file = folder / "tokenizer.json"
    write_tokenizer_json(vocabulary, file)
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return file


def set_pattern(pattern):
    return lambda content: content["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=pattern)


def set_vocab(**ids):
    return lambda content: content["model"]["vocab"].update(ids)


def add_merge(merge):
    return lambda content: content["model"]["merges"].append(merge)


def add_token(index, name="<|x|>"):
    return lambda content: content["added_tokens"].append({"id": index, "content": name})


NEXT = len(BPE.tokens)
CHANGES = {
    "a model of another type": (lambda content: content.update(model=3), "."),
    "no model": (lambda content: content.pop("model"), "model"),
    "an id twice": (set_vocab(zz=97), "97"),
    "an id twice, once as true": (set_vocab(zz=True), "True|1"),
    "a gap": (lambda content: content["model"]["vocab"].pop("a"), "no token has the id 97"),
    "a gap after the last id": (set_vocab(zz=NEXT + 1), f"no token has the id {NEXT}"),
    "a negative id": (set_vocab(zz=-1), "id -1|no token has the id"),
    "an id of 2**31": (set_vocab(zz=2**31), "id 2147483648|no token has the id"),
    "an id of 2**63": (set_vocab(zz=2**63), "id 9223372036854775808|no token has the id"),
    "an id of 400 digits": (set_vocab(zz=10**400), "id"),
    "an id with a fraction": (set_vocab(t=116.0), "116"),
    "an id that is null": (set_vocab(zz=None), "None|no token has the id"),
    "an id in quotes": (set_vocab(a="97"), "97"),
    "a vocabulary that is a list": (lambda content: content["model"].update(vocab=[["a", 0]]), "."),
    "a letter outside the alphabet": (set_vocab(**{"語": NEXT}), "語"),
    "a letter of the alphabet missing": (
        lambda content: content["model"]["vocab"].update(zz=content["model"]["vocab"].pop("a")),
        "of the 256 bytes have no token: it cannot encode every text, such as",
    ),
    "a merge of no token": (add_merge(["zq", "x"]), "zq"),
    "a merge that makes no token": (add_merge(["a", "b"]), "ab?"),
    "a merge of one": (add_merge("abc"), "abc"),
    "a merge of three": (add_merge("a b c"), "a b c|'a', 'b', 'c'"),
    "a merge of numbers": (add_merge([0, 1]), "0"),
    "merges that are a number": (lambda content: content["model"].update(merges=3), "int"),
    "no regular expression": (set_pattern("("), "regular expression"),
    "a pattern that matches the empty string": (set_pattern("a*"), "empty"),
    "an added token with a text token's id": (add_token(256), "256"),
    "an added token with another one's id": (add_token(NEXT - 1), str(NEXT - 1)),
    "an added token with another one's name": (add_token(NEXT, "<|bos|>"), r"<\|bos\|>"),
    "an added token of huge id": (add_token(2**63), "id"),
    "an added token of negative id": (add_token(-1), "id"),
    "an added token without a name": (add_token(NEXT, None), "."),
    "an added token that is half a surrogate pair": (add_token(NEXT, "\ud800"), "surrogate"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_wrong_tokenizer_json_is_refused(change, message, tmp_path):
    file = write_content(tmp_path, change)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(file))}: .*({message})"):
        read_vocabulary(file)


PIECES = {
    "a piece that is a number": ([1, -1.0], "."),
    "a piece twice": (["a", -1.0], "a|no token has the id"),
    "a score in quotes": (["zz", "-1"], "-1"),
    "no score": (["zz", None], "None"),
    "a score beyond all": (["zz", 1e300], "score"),
    "a score that is no number": (["zz", math.nan], "score"),
    "a triple": (["zz", -1.0, 3], "."),
}


@pytest.mark.parametrize(("piece", "message"), PIECES.values(), ids=PIECES)
def test_a_wrong_piece_is_refused(piece, message, tmp_path):
    file = write_content(tmp_path, lambda content: content["model"]["vocab"].append(piece), UNIGRAM)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(file))}: .*({message})"):
        read_vocabulary(file)


def test_a_truncated_tokenizer_json_is_refused(tmp_path):
    write_tokenizer_json(BPE, tmp_path / "whole.json")
    data = (tmp_path / "whole.json").read_bytes().rstrip()
    for length in range(0, len(data), 7):
        (tmp_path / "cut.json").write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"cut\.json: "):
            read_vocabulary(tmp_path / "cut.json")


NO_TOKENIZERS = {
    "deep lists": "[" * 100_000,
    "deep objects": '{"model":' * 100_000,
    "a long number": "9" * 5000,
    "no UTF-8": "\xff",
    "nothing": "",
    "null": "null",
    "a list": "[]",
    "a number": "3",
}


@pytest.mark.parametrize("text", NO_TOKENIZERS.values(), ids=NO_TOKENIZERS)
def test_json_that_holds_no_tokenizer_is_refused(text, tmp_path):
    (tmp_path / "t.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"t\.json: "):
        read_vocabulary(tmp_path / "t.json")


USE = """
import os, signal, sys
from chatmill.tokenizer.formats.tokenizer_loading import load

def use(file, texts):
    try:
        tokenizer = load(file)
        lost = [text[:40] for text in texts if tokenizer.decode(tokenizer.encode(text)) != text]
    except ValueError:
        return "refused"
    return f"lost: {lost}" if lost else "lossless"

seconds, count, *rest = sys.argv[1:]
for file in rest[: int(count)]:
    if not os.fork():
        signal.alarm(int(seconds))
        print(use(file, rest[int(count) :]), flush=True)
        os._exit(0)
    if status := os.wait()[1]:
        print("died:", os.waitstatus_to_exitcode(status), flush=True)
"""


def use(files, *texts):
    """The outcome for each file: its own process encodes the texts without loss, or refuses the tokenizer, in time."""
    command = [sys.executable, "-c", USE, str(SECONDS), str(len(files)), *files, *texts]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    outcomes = run.stdout.splitlines()
    assert len(outcomes) == len(files), run.stderr[-500:]
    return outcomes


EXPENSIVE = ["(a+)+$", r"(a+)+$|[\s\S]", r"(?:a|aa)+(?!a)$|[\s\S]", r"(a|a)*(?=b)|[\s\S]"]  # for "aaaa…!"
ODD = ["a*", "(?=a)", "x", r"\p{L}+", "", "\ud800", r"[\S\s]+?|x"]


@pytest.mark.parametrize("vocabulary", [BPE, WORDPIECE], ids=["bpe", "wordpiece"])
def test_a_hostile_pattern_is_refused_or_harmless(vocabulary, tmp_path):
    patterns, files = EXPENSIVE + ODD, []
    for number, pattern in enumerate(patterns):
        (tmp_path / str(number)).mkdir()
        files.append(write_content(tmp_path / str(number), set_pattern(pattern), vocabulary))
    outcomes = use(files, "a" * 40 + "!", "a" * 5000 + "!", "The café, 12")
    assert {pattern: how for pattern, how in zip(patterns, outcomes, strict=True) if how not in EXPECTED} == {}


LONG = {
    "bpe": ("json", write_tokenizer_json, BPE),
    "wordpiece": ("json", write_tokenizer_json, WORDPIECE),
    "unigram": ("json", write_tokenizer_json, UNIGRAM),
    "tiktoken": ("tiktoken", write_unnamed_ranks, BPE),
    "pkl": ("pkl", write_unnamed_pickle, BPE),
    "bin": ("bin", write_binary, BPE),
    "model": ("model", write_model, UNIGRAM),
    "model of merges": ("model", write_model, SENTENCEPIECE),
}


def write_long(folder, name, length):
    """A tokenizer with a token of that many bytes."""
    suffix, write, vocabulary = LONG[name]
    text = slice(vocabulary.num_text)
    tokens = (*vocabulary.tokens[text], b"th" * (length // 2))
    kinds, scores = (*vocabulary.kinds[text], Kind.NORMAL), (*vocabulary.scores[text], -9.0)
    folder.mkdir()
    write(
        add_special_tokens(replace(vocabulary, tokens=tokens, kinds=kinds, scores=scores), []),
        folder / f"tokenizer.{suffix}",
    )
    return folder / f"tokenizer.{suffix}"


@pytest.mark.parametrize("length", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_very_long_token_is_refused_or_read_in_seconds(length, tmp_path):
    outcomes = use([write_long(tmp_path / name, name, length) for name in LONG], "The café, 12")
    assert {name: how for name, how in zip(LONG, outcomes, strict=True) if how not in EXPECTED} == {}


FOREIGN = {
    "nothing": (b"", "an empty file"),
    "40 zeros": (b"\0" * 40, "too short"),
    "zeros": (b"\0" * 10_000, "no footer"),
    "ones": (b"\xff" * 10_000, "no footer"),
    "PNG": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\0\1\0" * 50, "no footer"),
    "zip": (b"PK\3\4" + bytes(range(256)), "a zip archive"),
}


@pytest.mark.parametrize(("data", "message"), FOREIGN.values(), ids=FOREIGN)
def test_another_program_s_file_is_no_tokenizer_bin(data, message, tmp_path):
    (tmp_path / "t.bin").write_bytes(data)
    with pytest.raises(ValueError, match=rf"t\.bin: not a .*tokenizer.*{message}"):
        read_vocabulary(tmp_path / "t.bin")


def test_the_tokenizer_bin_of_llama2c_is_none_of_ours(tmp_path):
    write_llama2c(BPE, tmp_path / "tokenizer.bin")
    with pytest.raises(ValueError, match=r"tokenizer\.bin: .*no footer: it is truncated, or another program's file"):
        read_vocabulary(tmp_path / "tokenizer.bin")


def test_a_later_version_of_tokenizer_bin_is_named(tmp_path):
    write_binary(BPE, tmp_path / "t.bin")
    data = (tmp_path / "t.bin").read_bytes()
    place = data.rindex(MAGIC) + len(MAGIC)
    (tmp_path / "t.bin").write_bytes(data[:place] + b"\2\0\0\0" + data[place + 4 :])
    with pytest.raises(ValueError, match=r"t\.bin: .*version of the format: expected 1, got 2"):
        read_vocabulary(tmp_path / "t.bin")


def check_every_bit(vocabulary, file):
    write_binary(vocabulary, file)
    data = bytearray(file.read_bytes())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="not a complete tokenizer"):
            read_vocabulary(file)


def test_a_tiny_tokenizer_bin_altered_in_any_bit_is_refused(tmp_path):
    kinds = (Kind.NORMAL, Kind.NORMAL, Kind.CONTROL)
    tiny = Vocabulary("byte", "lookup", r"[\s\S]", (b"\xff\x00", b"\xc3", b"<|bos|>"), kinds, (-0.5, -1.0, NO_RANK))
    check_every_bit(tiny, tmp_path / "t.bin")


@pytest.mark.slow
def test_a_tokenizer_bin_altered_in_any_bit_is_refused(tmp_path):
    check_every_bit(BPE, tmp_path / "t.bin")
