from pathlib import Path

import pytest

from chatmill.pipeline.signatures import Output, parse_files, signature_of


def few(a: Path, b: Path, out: Output) -> None:
    """Three files."""


def many(train: Path, test: Path, soft_tokenizer: Output, metrics: Output) -> None:
    """Four files."""


def parse(main, words):
    return parse_files(main, signature_of(main), "stage", words.split())


def test_few_files_are_named_by_their_places():
    assert parse(few, "x y z") == {"a": Path("x"), "b": Path("y"), "out": Path("z")}


def test_many_files_are_named_one_by_one_in_any_order():
    found = parse(many, "--metrics m --test b --train a --soft-tokenizer s")
    assert found == {"train": Path("a"), "test": Path("b"), "soft_tokenizer": Path("s"), "metrics": Path("m")}


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (few, "x y", "the following arguments are required: OUT: see --help"),
        (few, "x y z w", "unrecognized arguments: w"),
        (many, "a b c d", "the following arguments are required: --train, --test, --soft-tokenizer, --metrics"),
        (many, "--train a --tes b --soft-tokenizer s --metrics m", "the following arguments are required: --test"),
    ],
)
def test_missing_and_unknown_files_are_errors(main, words, message):
    with pytest.raises(ValueError, match=message):
        parse(main, words)
