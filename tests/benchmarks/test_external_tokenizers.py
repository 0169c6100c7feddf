"""The comparison with other libraries: its small tokenizers are what they claim, and a difference is noticed."""

import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from support.external_ranks import BUILDERS
from support.hard_texts import control_texts
from support.original_tokenizers import Original, open_original

sys.path.insert(0, str(Path(__file__).parent))

import external_tokenizers as benchmark

TEXT = "the cat  sat\n\non 12 mañanas, <mask> [REF]<sep>  \t\tDON'T 🙂 中 tea\u2581"


@pytest.mark.parametrize(
    "name",
    [
        *sorted(BUILDERS.keys() - {"tekken", "empty_token"}),
        pytest.param("empty_token", marks=pytest.mark.slow),  # transformers has the names of Whisper's control tokens
    ],
)
def test_a_small_tokenizer_opens_in_its_library_with_the_same_ids(name, tmp_path):
    folder = tmp_path / {"empty_token": "whisper_tiktoken"}.get(name, name)
    folder.mkdir()
    built = BUILDERS[name](folder)
    assert list(benchmark.find_originals(tmp_path, tmp_path / "scratch").values()) == [built.path]
    original = open_original(built.path, tmp_path)
    assert (original.encode or original.encode_plain)([TEXT]) == [built.encode(TEXT)]


def test_splits_into_later_tokens_are_merged_too(tmp_path):
    """Without those merges, a word that precedes its beginning is found only where it is a complete piece."""
    path, encode = BUILDERS["every_split"](tmp_path)
    content = json.loads(path.read_bytes())
    ids = content["model"]["vocab"]
    older = [pair for pair in content["model"]["merges"] if max(map(ids.get, pair)) < ids["".join(pair)]]
    content["model"]["merges"] = older
    fewer = Tokenizer.from_str(json.dumps(content))
    assert fewer.encode("café").ids == encode("café")
    assert fewer.encode("_café").ids != encode("_café")


def test_texts_around_control_tokens_are_always_the_same():
    texts = control_texts(["<mask>"], 200)
    assert texts == control_texts(["<mask>"], 200)
    assert {"<mask>", " <mask>", "<mask><mask>", "x<mask>y"} <= set(texts)
    assert any("<MASK>" in text for text in texts)


def test_a_difference_is_counted_and_shown():
    encode = lambda texts: [list(text.encode()) for text in texts]  # noqa: E731
    original = Original("bytes", encode, None, {"<s>": 1})
    texts = benchmark.Texts(["abc", "ab", "<s>"], ["one", "two", "two"], encode(["abc", "ab", "<s>"]), None)
    found = benchmark.compare("tokenizer.json", "exact", lambda texts: [[97, 0]] * len(texts), original, texts)
    assert (found.compared, found.left_out, found.differing, found.wrong) == (2, 1, 2, True)
    assert found.by_category == "one 1, two 1"
    assert found.example == "'ab': from id 1: original [98], here [0]"
    assert not benchmark.compare("tokenizer.bin", "exact", encode, original, texts).wrong
