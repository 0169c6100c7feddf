import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.app.measurement import Pair, equal_nats, read_pairs, score_pairs
from chatmill.inference.chat_template import CHATMILL_TEMPLATES, ExternalTemplate
from support.tiny import byte_tokenizer

CHATML = CHATMILL_TEMPLATES["chatml"]


def score(paradigms, nats, template=CHATML):
    pairs = {name: [Pair(*pair, name) for pair in group] for name, group in paradigms.items()}
    return score_pairs(pairs, byte_tokenizer(), template.continue_final_message, nats)


def of_text(cost):
    """The nats of each byte by a function of its letter."""
    return lambda documents: [np.array([cost(chr(i)) for i in ids.tolist()]) for ids in documents]


@given(
    st.lists(
        st.text(st.characters(codec="ascii", exclude_characters="<"), min_size=1).map(lambda one: (one, one[::-1])),
        min_size=1,
    )
)
def test_a_model_of_equal_logits_is_right_in_half_of_the_pairs_of_equal_length(pairs):
    found = score({"any": pairs}, equal_nats)
    assert found.mean.value == 0.5


@pytest.mark.parametrize("template", [CHATML, CHATMILL_TEMPLATES["markers"], ExternalTemplate("plain", [])])
def test_the_sentence_alone_counts_and_all_of_it(template):
    """An x costs more than all else; the header and what ends a message are the same for both sentences."""
    dear = of_text(lambda letter: 100.0 if letter == "x" else 1.0)
    found = score(
        {"end": [("some", "somx")], "middle": [("so", "xo"), ("sxo", "so")]}, dear, ExternalTemplate("markers", [])
    )
    assert (found.paradigms["end"].value, found.paradigms["middle"].value) == (1, 0.5)
    assert (found.mean.value, found.mean.n) == (0.75, 3)


def test_lines_alternate_and_the_acceptable_sentence_comes_second(tmp_path):
    (tmp_path / "number.txt").write_bytes("a dogs .\r\na dog .\r\nsome dög .\r\nsome dögs .".encode())
    (tmp_path / "LICENSE").write_text("one line\n")
    found = read_pairs(tmp_path)
    assert {name: [pair[:2] for pair in pairs] for name, pairs in found.items()} == {
        "number": [("a dog .", "a dogs ."), ("some dögs .", "some dög .")]
    }
    assert read_pairs(tmp_path / "number.txt", limit=1)["number"][0].place == f"{tmp_path / 'number.txt'}:1"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"bad\ngood\nbad\n", r"a\.txt: an odd number of lines, 3: expected pairs"),
        ("a.txt", b"", r"a\.txt: no pairs: the file is empty"),
        ("a.txt", b"ab\n\xff\n", r"a\.txt: not UTF-8 at byte 3"),
        ("a.txt", b"bad\n\nbad\ngood\n", r"a\.txt:2: an empty line: expected a sentence"),
        ("a.txt", b"x" * 100_001 + b"\ngood", r"a\.txt:1: text holds a run of over 100,000"),
        ("a.jsonl", b"{\n", r"a\.jsonl:1: not JSON"),
        ("a.jsonl", b"[]\n", r"a\.jsonl:1: expected an object with the texts sentence_good and sentence_bad"),
        ("a.jsonl", b'{"sentence_good": 1, "sentence_bad": "a"}', r"a\.jsonl:1: expected an object"),
        ("a.md", b"bad\ngood\n", r"no pairs: expected \.txt or \.jsonl files"),
    ],
)
def test_files_of_another_shape_are_refused_with_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_pairs(tmp_path)
