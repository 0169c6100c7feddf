from dataclasses import replace

import numpy as np
import pytest

from chatmill.app.cli import main
from chatmill.checkpoints.configuration import Chunking
from chatmill.report.token_view import chunk_list
from chatmill.soft_tokenizer.chunks import chunk_contents, chunk_starts, chunk_statistics, word_edges
from support.tiny import CONFIG, random_model, write_model

CHUNKED = replace(CONFIG, chunking=Chunking())


def letters(text):
    return [text[i : i + 1] for i in range(len(text))]


def test_chunks_are_the_bytes_between_starts():
    starts = np.array([True, False, True, False, False])
    assert chunk_contents(starts, [b"a", b"b", b"c", b"d", b"e"]) == [b"ab", b"cde"]


def test_words_begin_and_end_at_edges():
    assert word_edges(letters(b"I am.")) == [True, True, True, False, True]


def test_chunks_like_clockwork_have_no_spread():
    starts = [np.array([True, False] * 4), np.array([True, False] * 2)]
    found = chunk_statistics(starts, [letters(b"abcd efg"), letters(b"abcd")])
    assert (found["tokens"], found["spread"]) == (2, 0)


def test_starts_are_held_against_word_edges_by_hand():
    starts = [np.array([True, True, False, True, False])]  # a, the blank and d are edges; chunks begin at a, b and d
    found = chunk_statistics(starts, [letters(b"ab de")])
    assert found["at_word_edges"].value == pytest.approx(2 / 3) and found["chance"].value == pytest.approx(3 / 5)


def test_a_text_begins_with_a_chunk_and_one_beyond_the_context_begins_anew():
    starts = chunk_starts(random_model(CHUNKED), list(range(200)) * 4)
    assert len(starts) == 800 and starts[0] and starts[640]


def test_a_page_shows_each_chunk():
    assert chunk_list("héllo you", [3, 4, 3]).count('class="token t') == 3


def test_the_terminal_shows_a_models_chunks(tmp_path, capsys):
    folder = write_model(tmp_path / "model", CHUNKED)
    assert main(["show", "Hello you", "--tokenizer", str(folder), "--model", str(folder)]) == 0
    output = capsys.readouterr().out
    assert f"chunks of {folder}" in output and "tokens each" in output


def test_a_model_that_reads_tokens_has_no_chunks(tmp_path, capsys):
    folder = write_model(tmp_path / "model")
    assert main(["show", "Hello", "--tokenizer", str(folder), "--model", str(folder)]) == 1
    assert "its layers read tokens, not chunks: train one with train_model.chunking: learned" in capsys.readouterr().err
