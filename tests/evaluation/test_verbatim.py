import random

from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import Message, Part, Record, escape, render
from chatmill.evaluation.intervals import values_of
from chatmill.evaluation.verbatim import Stretches, find_copies, measure_copying, sampled_answers, words

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=8).map(tuple), max_size=4)


def longest_run(text, others):
    """By trying all."""
    runs = {other[i:j] for other in others for i in range(len(other)) for j in range(i + 1, len(other) + 1)}
    return max((j - i for i in range(len(text)) for j in range(i + 1, len(text) + 1) if text[i:j] in runs), default=0)


@given(TEXTS, TEXTS)
def test_the_longest_stretch_is_the_one_found_by_trying_all(texts, train):
    stretches = Stretches(texts)
    for text in train:
        stretches.search(text)
    assert stretches.longest() == [longest_run(text, train) for text in texts]


def test_an_answer_is_verbatim_whatever_its_case_and_punctuation():
    found = find_copies(["You're WELCOME", "You're", "", "..."], ["you're welcome!", "?"])
    assert found.verbatim == [True, False, False, False]
    assert found.stretches == [3, 2, 0, 0]


def test_a_stretch_does_not_run_over_the_end_of_an_answer():
    assert find_copies(["a b c d"], ["x a b", "c d x"]).stretches == [2]
    assert find_copies(["a b", "c d"], ["a b c d"]).stretches == [2, 2]


def test_what_is_found_grows_with_the_train_that_is_read_and_not_with_memory():
    own = [" ".join(random.Random(i).choices("abcdefgh", k=50)) for i in range(20)]
    stretches = Stretches(list(map(words, own)))
    states = len(stretches._next)
    for i in range(200):
        stretches.search(tuple(random.Random(1000 + i).choices("abcdefgh", k=100)))
    assert len(stretches._next) == states < 2 * 20 * 51
    assert all(3 <= length < 12 for length in stretches.longest())


def write(file, texts):
    call = Message("assistant", (Part("call", "1+1"), Part("output", "2"), Part("text", "Two.")))
    conversations = [[Message.from_text("user", "Hi."), Message.from_text("assistant", text), call] for text in texts]
    file.write_text("".join(Record("talk", "1", render(one)).to_json() for one in conversations))
    return file


def test_only_what_the_assistant_says_is_searched(tmp_path):
    assert list(sampled_answers(write(tmp_path / "train.jsonl", ["Hello."]))) == ["Hello.", "Two."]


def test_a_model_that_has_its_answers_from_the_training_data_is_found_out(tmp_path):
    file = write(tmp_path / "train.jsonl", ["Tea is FINE, naïvely."])
    found = values_of(measure_copying(["Tea is fine!", "tea is fine naïvely"], ["Tea?"], file))
    assert found == {"share": 0.5, "longest_mean": 3.5, "longest_max": 4, "train_share": 1} | {
        "true": {"share": 0, "longest_mean": 1, "longest_max": 1}
    }


def test_without_answers_nothing_is_said_of_copying(tmp_path):
    found = values_of(measure_copying([], [], write(tmp_path / "train.jsonl", ["Hello."])))
    assert found["share"] is None and found["longest_mean"] is None and found["true"]["longest_max"] is None


def test_documents_are_searched_as_answers_are(tmp_path):
    chat = render([Message.from_text("user", "Who?"), Message.from_text("assistant", "Me.")])
    records = [Record("books", "1", escape("It <|was|> dark.")), Record("talk", "2", chat)]
    (tmp_path / "train.jsonl").write_text("".join(record.to_json() for record in records))
    assert list(sampled_answers(tmp_path / "train.jsonl")) == ["It <|was|> dark.", "Me."]
