import json

import pytest

from chatmill.app.look.guess import NoGuessError
from chatmill.app.look.proposal import propose
from chatmill.app.look.rows import guess_rows
from chatmill.app.look.sample import take_sample
from support.paths import SHARED

REAL = SHARED / "chat/mt_bench"


def asked(i):
    return [f"What is the number {i}?", f"And what is the number {i + 1}?"]


def answered(i):
    return [f"It is the number {i}.", f"That is the number {i + 1}."]


@pytest.mark.parametrize(
    ("prompt", "response"),
    [("questions", "answers"), ("turns", "choices.0.turns"), ("prompts", "responses"), ("d.inputs", "d.outputs")],
)
def test_a_list_of_questions_and_one_of_answers_are_a_pair(tmp_path, prompt, response):
    def row(i):
        if response.startswith("choices"):
            return {"id": i, prompt: asked(i), "choices": [{"index": 0, "turns": answered(i)}]}
        if prompt.startswith("d."):
            return {"d": {"inputs": asked(i), "outputs": answered(i)}}
        return {"id": i, prompt: asked(i), response: answered(i)}

    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row(i))}\n" for i in range(20)))
    trial = propose(take_sample(tmp_path / "x.jsonl", tmp_path), tmp_path)
    assert (trial.guess.format, trial.guess.columns) == ("table", {"prompt": prompt, "response": response})
    assert trial.share == 1
    texts = [text for pair in zip(asked(0), answered(0), strict=True) for text in pair]
    assert [trial.records[0].text.count(text) for text in texts] == [1] * 4


def test_the_answers_of_most_rows_are_taken():
    rows = [{"turns": asked(i), "choices": [{"turns": answered(i)}]} for i in range(6)]
    rows = [row | ({"reference": answered(i)} if i else {}) for i, row in enumerate(rows)]
    assert guess_rows(rows)[0].columns == {"prompt": "turns", "response": "choices.0.turns"}


def test_lists_of_other_lengths_are_no_pair():
    rows = [{"turns": [*asked(i), *answered(i)], "references": [f"book {i}"]} for i in range(6)]
    assert guess_rows(rows)[0].columns == {"messages": "turns"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (lambda i: {"question_id": i, "turns": asked(i)}, "questions alone .*no column holds answers: each row needs"),
        (lambda i: {"question_id": i, "turns": asked(i)[:1]}, "turns seems to hold questions alone, and no column"),
        (
            lambda i: {"answer_id": f"a-{i}", "choices": [{"index": 0, "turns": answered(i)}]},
            r"choices\.0\.turns seems to hold answers alone, and no column holds questions: .*response: choices\.0",
        ),
    ],
)
def test_questions_alone_and_answers_alone_are_refused_with_what_is_needed(row, reason):
    with pytest.raises(NoGuessError, match=reason):
        guess_rows([row(i) for i in range(6)])


@pytest.mark.skipif(not REAL.exists(), reason="needs the public datasets")
@pytest.mark.parametrize(
    ("name", "alone", "missing"),
    [
        ("vicuna_bench_question.jsonl", "questions", "answers"),
        ("vicuna_bench_reference_gpt-4.jsonl", "answers", "questions"),
        ("mt_bench_reference_gpt-4.jsonl", "answers", "questions"),
    ],
)
def test_files_of_questions_and_files_of_answers_are_refused(tmp_path, name, alone, missing):
    with pytest.raises(NoGuessError, match=f"hold {alone} alone, and no column holds {missing}"):
        propose(take_sample(REAL / name, tmp_path), tmp_path)


@pytest.mark.skipif(not REAL.exists(), reason="needs the public datasets")
def test_that_few_questions_have_answers_is_said(tmp_path):
    trial = propose(take_sample(REAL / "mt_bench_question.jsonl", tmp_path), tmp_path)
    assert trial.guess.columns == {"prompt": "turns", "response": "reference"}
    assert "only 39% of the sampled entries would be kept: missing_field (41)" in trial.guess.doubts[-1]
