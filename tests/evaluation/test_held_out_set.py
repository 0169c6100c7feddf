from dataclasses import replace

from chatmill.conversation import Message, Record, render
from chatmill.evaluation.held_out_set import sample_test_set


def talk(source, key):
    return Record(source, f"{source}/{key}", render([Message.from_text("user", f"Say {key} of {source}.")]))


def exercise(name, key, phrasing="known", scored_by="answers"):
    skill = {"name": name, "phrasing": phrasing, scored_by: ["2"]}
    conversation = [Message.from_text("user", f"Do {name} {key}."), Message.from_text("assistant", "2")]
    return Record("skills", f"skills/{key}", render(conversation), skill)


def write_all(file, records):
    file.write_text("".join(record.to_json() for record in records))
    return file


def texts(conversations):
    return [render(conversation) for conversation in conversations]


def test_a_sample_has_every_source_and_the_order_of_the_file(tmp_path):
    records = [talk("large", key) for key in range(900)] + [talk("small", key) for key in range(30)]
    file = write_all(tmp_path / "test.jsonl", records)
    found, whole = (sample_test_set(file, limit, 1, 1).test for limit in (300, None))
    assert (found.sources.count("large"), found.sources.count("small")) == (270, 30)
    order = {record.text: number for number, record in enumerate(records)}
    numbers = [order[text] for text in texts(found.conversations)]
    assert numbers == sorted(set(numbers)) and len(whole.conversations) == 930


def test_questions_are_exercises_and_found_beyond_the_sample(tmp_path):
    records = [exercise("add", key) for key in range(4)]
    records += [
        exercise("add", 5, "held_back"),
        message(6, turn=1, noisy=False),
        message(7, name="recall"),
        exercise("tell", 8, "known", "contains"),
    ]
    file = write_all(tmp_path / "test.jsonl", [*records, exercise("judge", 9, "known", "judged_by")])
    found = sample_test_set(file, 1, 2, 0).questions
    assert [(one.conversation[0].text, one.rank) for one in found] == [
        ("Do add 0.", 0),
        ("Do add 1.", 1),
        ("Do add 5.", 0),
        ("Do tell 8.", 0),
    ]


def message(number, **skill):
    conversation = [Message.from_text("user", f"Message {number}."), Message.from_text("assistant", "2")]
    return Record("talk", f"talk/{number}", render(conversation), {"name": "talk"} | skill)


def test_questions_to_a_persona_are_chosen_by_kind_and_beyond_the_sample(tmp_path):
    kinds = {
        "first": {"turn": 1, "noisy": False},
        "noisy": {"turn": 1, "noisy": True},
        "later": {"turn": 3, "noisy": False},
        "recall": {"name": "recall"},
    }
    records = [message(f"{key}, {kind}", **skill) for kind, skill in kinds.items() for key in range(5)]
    records += [exercise("add", 1), talk("talk", 1)]
    file = write_all(tmp_path / "test.jsonl", records)
    found = sample_test_set(file, 1, 1, 1, 3).talk_questions
    assert {kind: [one.rank for one in asked] for kind, asked in found.items()} == {kind: [0, 1, 2] for kind in kinds}
    for kind, asked in found.items():
        assert all(len(one.conversation) == 1 and kind in one.conversation[0].text for one in asked)


def test_documents_are_scored_and_not_asked_nor_are_answers_true_that_are_not_trained(tmp_path):
    silent = replace(talk("talk", 1), train=[False])
    records = [Record("books", "documents/1", "Once upon a time."), exercise("add", 1), silent, talk("talk", 2)]
    found = sample_test_set(write_all(tmp_path / "test.jsonl", records), None, 9, 9)
    assert found.test.records == records
    assert found.test.sources == ["books", "skills", "talk", "talk"]
    assert [len(one) for one in found.test.conversations] == [0, 2, 1, 1]
    assert [texts([one.conversation]) for one in found.questions] == [texts([found.test.conversations[1][:-1]])]
    assert texts(found.talk) == [records[3].text]
