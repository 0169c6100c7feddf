import base64
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiktoken
import tokenizers
import yaml

import train_tokenizer
from chatmill.conversation import Message, Record, render
from chatmill.tokenizer.formats.tokenizer_loading import load
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from support.paths import ANY_FOLDER, SHARED

STAGES = Path(train_tokenizer.__file__).parent
TOKENIZERS = SHARED / "tokenizers"
SIZES = {"whitespace": 512, "char": 512, "byte": 512, "bpe": 512, "wordpiece": 640, "sentencepiece": 512}
SETTINGS = {"type": "bpe", "vocab_size": 512, "special_tokens": []} | {name: {} for name in SIZES}


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """Some 50 kB of conversations, one of them full of control tokens' names."""
    file = tmp_path_factory.mktemp("chat") / "train.jsonl"
    syllables = ["wea", "ther", "gar", "den", "ri", "ver", "ca", "fé", "na", "ïve", "mu", "sic", "bread", "win", "ter"]
    choose = random.Random(1).choice
    words = ["".join(choose(syllables) for _ in range(1 + i % 3)) for i in range(200)]
    with file.open("w", encoding="utf-8") as lines:
        for i in range(300):
            conversation = [
                Message.from_text("user", f"What do you think of the {choose(words)}, and of {i} {choose(words)}s?"),
                Message.from_text("assistant", f"I like {choose(words)} more than {choose(words)}.\n<|im_end|> 中文"),
            ]
            lines.write(Record("talk", f"talk/{i}", render(conversation)).to_json())
    return file


def run(folder, chat, **changes):
    (folder / "params.yaml").write_text(yaml.safe_dump({"train_tokenizer": SETTINGS | changes}))
    files = {"chat": chat, "pretrained": ANY_FOLDER, "models": ANY_FOLDER, "tokenizer": "tokenizer"}
    options = [part for name, file in files.items() for part in (f"--{name}", file)]
    command = [sys.executable, STAGES / "train_tokenizer.py", *options]
    environment = os.environ | {"PYTHONHASHSEED": "random"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def train(chat, output, **changes):
    """The folder's bytes, by file."""
    train_tokenizer.main(chat, ANY_FOLDER, ANY_FOLDER, output, initial=None, parameters=SETTINGS | changes)
    return {file.name: file.read_bytes() for file in output.iterdir()}


@pytest.mark.parametrize("name", SIZES)
def test_every_type_trains_and_gives_the_same_bytes_in_another_process(chat, tmp_path, name):
    chosen = {"type": name, "vocab_size": SIZES[name], "special_tokens": ["<|mood|>"]}
    here = train(chat, tmp_path / "here", **chosen)
    assert run(tmp_path, chat, **chosen).returncode == 0
    assert here == {file.name: file.read_bytes() for file in (tmp_path / "tokenizer").iterdir()}
    tokenizer = load(tmp_path / "here")
    assert tokenizer.vocabulary.type == name
    assert tokenizer.special["<|mood|>"] == tokenizer.num_text + 8
    assert tokenizer.vocab_size <= SIZES[name]
    assert not any(b"<|im" in token for token in tokenizer.token_bytes[: tokenizer.num_text])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "words"}, "train_tokenizer.type: expected bpe, byte, char, pretrained, "),
        ({"words": {}}, "unknown parameter train_tokenizer.words"),
        ({"bpe": {"patern": "qwen2"}}, "unknown parameter train_tokenizer.bpe.patern"),
        ({"bpe": {"pattern": "qwen"}}, 'train_tokenizer.bpe.pattern = "qwen": expected qwen2, llama3'),
        ({"type": "pretrained"}, "missing parameter train_tokenizer.pretrained.path"),
        ({"bpe": {"buffer_size": 0}}, "train_tokenizer.bpe.buffer_size: expected an integer above 0 and at most"),
        ({"vocab_size": "512"}, 'train_tokenizer.vocab_size: expected an integer above 0, got "512"'),
        ({"max_bytes": 0}, "train_tokenizer.max_bytes: expected an integer above 0, or null, got 0"),
    ],
)
def test_wrong_parameters_are_one_line_and_leave_nothing(chat, tmp_path, changes, message):
    result = run(tmp_path, chat, **changes)
    assert message in result.stderr
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "tokenizer").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 500}, "train_tokenizer.vocab_size = 500: expected a multiple of 64"),
        ({"vocab_size": 256}, "train_tokenizer.vocab_size = 256: bpe needs at least 320"),
        ({"vocab_size": 512, "type": "wordpiece"}, "train_tokenizer.vocab_size = 512: wordpiece needs at least 576"),
        ({"special_tokens": ["mood"]}, "special token 'mood': expected the form <|name|>"),
        ({"special_tokens": ["<|bos|>"]}, "special token '<|bos|>': expected another name"),
        ({"special_tokens": ["<|unused_1|>"]}, "special token '<|unused_1|>': expected another name"),
        ({"special_tokens": ["<|a|>", "<|a|>"]}, "special tokens <|a|>, <|a|>: expected each once"),
    ],
)
def test_what_no_tokenizer_can_be_is_refused(chat, tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(chat, tmp_path / "tokenizer", **changes)


@pytest.mark.parametrize("type", ["bpe", "wordpiece", "sentencepiece"])
def test_a_short_text_gives_as_many_tokens_as_it_supports(chat, tmp_path, type, capfd):
    train(chat, tmp_path / "most", vocab_size=64000, type=type)
    most = load(tmp_path / "most").vocab_size
    assert most % 64 == 0 and f"the vocabulary has {most} tokens; vocab_size = 64000" in capfd.readouterr().err
    train(chat, tmp_path / "same", vocab_size=most, type=type)
    assert load(tmp_path / "same").fingerprint == load(tmp_path / "most").fingerprint


def pretrained(folder, chat, file):
    return run(folder, chat, type="pretrained", pretrained={"path": str(file)})


def byte_level(vocab, merges):
    """A tokenizer of another library, with an end token of its own that its vocabulary holds."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


@pytest.fixture
def other(tmp_path):
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*letters, "Ġt", "he", "Ġthe"])}
    tokenizer = byte_level(vocab, [("Ġ", "t"), ("h", "e"), ("Ġt", "he")])
    tokenizer.save(str(tmp_path / "other.json"))
    return tokenizer


def test_a_pretrained_tokenizer_keeps_its_ids_and_gets_the_tokens_of_chats(chat, tmp_path, other):
    result = pretrained(tmp_path, chat, tmp_path / "other.json")
    assert result.stderr == "train_tokenizer: the vocabulary has 320 tokens; vocab_size = 512\n"
    tokenizer = load(tmp_path / "tokenizer")
    text = "the café, and\n then the\r\n other's 12"
    assert tokenizer.encode(text) == other.encode(text).ids
    assert list(tokenizer.special.items())[:2] == [("<|endoftext|>", 259), ("<|bos|>", 260)]


@pytest.mark.usefixtures("other")
def test_a_pretrained_file_outside_of_its_folder_is_refused_with_what_to_do(chat, tmp_path):
    section = SETTINGS | {"type": "pretrained", "pretrained": {"path": tmp_path / "other.json"}}
    place = Path("data/raw/external/pretrained")
    with pytest.raises(ValueError, match=r"pretrained\.path: .*`cp .*other\.json data/raw/external/pretrained/other"):
        train_tokenizer.main(chat, place, place, tmp_path / "out", initial=None, parameters=section)


@pytest.mark.slow
@pytest.mark.skipif(not TOKENIZERS.exists(), reason="needs the data beside the project")
def test_gpt2_gives_the_ids_of_tiktoken(chat, tmp_path):
    encoder = json.loads((TOKENIZERS / "gpt2/encoder.json").read_text(encoding="utf-8"))
    merges = (TOKENIZERS / "gpt2/vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    byte_level(encoder, [tuple(merge.split()) for merge in merges]).save(str(tmp_path / "gpt2.json"))
    assert pretrained(tmp_path, chat, tmp_path / "gpt2.json").returncode == 0
    lines = (TOKENIZERS / "tiktoken/r50k_base.tiktoken").read_text().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}
    reference = tiktoken.Encoding("r50k", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks, special_tokens={})
    text = (TOKENIZERS / "cs336_bpe_golden/address.txt").read_text(encoding="utf-8") + " naïve 中文 <|endoftext|>\n"
    assert load(tmp_path / "tokenizer").encode(text) == reference.encode_ordinary(text)


def is_below(line, share):
    digest = hashlib.blake2b(json.loads(line)["text"].encode(), digest_size=8).hexdigest()
    return int(digest, 16) < share * 2**64


@pytest.mark.parametrize("name", SIZES)
def test_of_too_many_bytes_every_type_takes_the_conversations_with_small_hashes(chat, tmp_path, name):
    lines, size = chat.read_text(encoding="utf-8").splitlines(keepends=True), chat.stat().st_size
    chosen = tmp_path / "chosen.jsonl"
    chosen.write_text("".join(line for line in lines if is_below(line, 0.75)), encoding="utf-8")
    changes = {"type": name, "vocab_size": SIZES[name]}
    sampled = train(chat, tmp_path / "sampled", max_bytes=size * 3 // 4, **changes)
    assert sampled == train(chosen, tmp_path / "chosen", **changes)
    assert 0.65 * size < chosen.stat().st_size < 0.85 * size
