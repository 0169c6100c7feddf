from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import Message, Part, Record, render
from chatmill.evaluation.intervals import values_of
from chatmill.evaluation.verbatim import longest_runs, measure_copying, sampled_answers

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=8).map(tuple), max_size=4)


def longest_run(text, others):
    """By trying all."""
    runs = {other[i:j] for other in others for i in range(len(other)) for j in range(i + 1, len(other) + 1)}
    return max((j - i for i in range(len(text)) for j in range(i + 1, len(text) + 1) if text[i:j] in runs), default=0)


@given(TEXTS, TEXTS)
def test_the_longest_stretch_is_the_one_found_by_trying_all(texts, train):
    assert longest_runs(texts, train) == [longest_run(text, train) for text in texts]


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
