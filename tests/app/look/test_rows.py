import json

import pytest

from chatmill.app.look.guess import NoGuessError
from chatmill.app.look.proposal import propose
from chatmill.app.look.rows import guess_rows
from chatmill.app.look.sample import take_sample
from chatmill.conversation import parse
from support.paths import SHARED

REAL = SHARED / "chat"
ROWS = 24
KEYS = ("messages", "conversation", "data.dialogue", "turns", "payload.chat.log")
FIELDS = (("role", "content"), ("speaker", "text"), ("author", "body"), ("from", "value"), ("sender", "message"))
NAMES = (("user", "assistant"), ("human", "gpt"), ("User", "Assistant"), ("customer", "agent"), ("Ana", "Ben"))
five = pytest.mark.parametrize("variant", range(5))


def question(i):
    return f"How do I bake bread of sort {i}, please?"


def answer(i):
    return f"You mix flour {i} and water, and wait for a day."


def nested(path, value, **others):
    """An object with a value at a path of keys."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return {"id": "row-1", **value, **others}


def conversations(variant, *, begin=(), between=(), names=None, fields=None):
    """Rows with messages of two exchanges, by the keys and names of a variant."""
    role, content = fields or FIELDS[variant]
    user, assistant = names or NAMES[variant]

    def row(i):
        turns = [*begin, (user, question(i)), *between, (assistant, answer(i)), (user, question(i + 1))]
        return [{role: name, content: text} for name, text in [*turns, (assistant, answer(i + 1))]]

    return [nested(KEYS[variant], row(i)) for i in range(ROWS)]


def proposed(folder, rows, name="x.jsonl"):
    """The trial of rows that are written to a file; speakers must not be exchanged."""
    file = folder / name
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    trial = propose(take_sample(file))
    for message in (message for record in trial.records for message in parse(record.text)):
        assert "How" not in message.text or message.role == "user"
        assert "mix" not in message.text or message.role == "assistant"
    return trial


def columns_of(trial):
    known = {
        "messages": {"messages": "messages", "role": "role", "content": "content"},
        "sharegpt": {"messages": "conversations", "role": "from", "content": "value"},
        "alpaca": {"prompt": "instruction", "response": "output"},
    }
    columns = trial.guess.columns or known[trial.guess.format]
    return {"role": "role", "content": "content", **columns} if "messages" in columns else columns


@five
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"begin": [("system", "Be kind.")]},
        {"begin": [("system", "")]},
        {"between": [("USER_OF_VARIANT", "And how long does it take?")]},
        {"between": [("system", "Answer briefly.")]},
        {"begin": [("ASSISTANT_OF_VARIANT", "Hello, what can I do?")]},
    ],
    ids=["plain", "system", "empty system", "two in a row", "late system", "assistant first"],
)
def test_messages_are_found_under_any_keys_and_names(variant, changes, tmp_path):
    own = {"USER_OF_VARIANT": NAMES[variant][0], "ASSISTANT_OF_VARIANT": NAMES[variant][1]}
    if variant == 4 and "ASSISTANT_OF_VARIANT" in str(changes):
        pytest.skip("whose names are unknown, and the assistant begins: nothing says who is who")
    changes = {where: [(own.get(name, name), text) for name, text in turns] for where, turns in changes.items()}
    trial = proposed(tmp_path, conversations(variant, **changes))
    role, content = FIELDS[variant]
    assert columns_of(trial) == {"messages": KEYS[variant], "role": role, "content": content}
    assert trial.share == 1


def test_messages_are_found_in_cells_that_hold_them_as_json(tmp_path):
    trial = proposed(tmp_path, [{"chat": json.dumps(row["messages"])} for row in conversations(0)])
    assert (trial.guess.columns, trial.share) == ({"messages": "chat"}, 1)


def test_speakers_may_be_numbers(tmp_path):
    trial = proposed(tmp_path, conversations(0, names=(0, 1)))
    assert (trial.guess.roles, trial.share) == ({"user": ["0"], "assistant": ["1"]}, 1)


@pytest.mark.parametrize(
    "keys", ["prompt completion", "question answer", "instruction output", "d.query d.reply", "Q A"]
)
def test_pairs_are_found_by_their_names(keys, tmp_path):
    prompt, response = keys.split()
    rows = [{**nested(prompt, question(i)), **nested(response, answer(i))} for i in range(ROWS)]
    if "." in keys:
        rows = [{"d": {"query": question(i), "reply": answer(i)}} for i in range(ROWS)]
    trial = proposed(tmp_path, rows)
    assert trial.share == 1
    if trial.guess.format != "messages":
        assert columns_of(trial) == {"prompt": prompt, "response": response}


@pytest.mark.parametrize("key", ["turns", "dialog", "messages", "chat", "utterances"])
def test_lists_of_texts_alternate_and_that_is_to_be_checked(key, tmp_path):
    guess = proposed(tmp_path, [{key: [question(i), answer(i)]} for i in range(ROWS)]).guess
    assert guess.columns == {"messages": key}
    assert "the first one to be the user's" in guess.doubts[0]


@pytest.mark.parametrize("key", ["text", "content", "body", "article", "doc.text"])
def test_a_column_of_texts_alone_holds_documents(key):
    guess = guess_rows([nested(key, f"{question(i)} {answer(i)}" * 3, label="x") for i in range(ROWS)])[0]
    assert (guess.format, guess.columns) == ("documents", {"text": key})


ONE_SIDE = "no column holds the others: each row needs both"
NOTHING = "no column holds a conversation, .* see the format table"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"chat": [{"human": "Hi you", "assistant": "Hello"}]}, NOTHING),
        ({"question_id": 1, "turns": ["Write me a poem.", "Write it anew."]}, ONE_SIDE),
        ({"prompt": "Hi there", "completions": [{"model": "a", "text": "Hello"}]}, ONE_SIDE),
        ({"input_ids": [1, 2, 3]}, NOTHING),
        ({"text": "<|im_start|>user\nHi"}, "the marks of a chat template"),
        ({"text": "### Human: Hi### Assistant: Hello"}, "names of speakers .*: write .* on a line of its own"),
        ({"conversation": [["Hi you there", "Hello to you"]]}, NOTHING),
        ({"log": [{"is_user": True, "text": "Hi you"}, {"is_user": False, "text": "Oh"}]}, NOTHING),
        ({"Scenario": "Bot_Age", "Response": "Hi, I am a mere program."}, ONE_SIDE),
    ],
)
def test_rows_that_nothing_reads_are_refused_with_the_reason(row, reason):
    with pytest.raises(NoGuessError, match=reason):
        guess_rows([json.loads(json.dumps(row).replace("Hi", f"Hi {i}")) for i in range(6)])


@pytest.mark.parametrize(
    "values",
    ["2024-01-{:02} 10:15", "Jan {}, 2024 3:15 PM", "{}.5.2024, 10:15 Uhr", "17040672{:02}.5", "a{}@b.org", "$1,{:03}"],
)
def test_a_column_of_dates_ids_or_numbers_is_no_text(values):
    rows = [{"created_at": values.format(i + 1), "text": question(i)} for i in range(ROWS)]
    guess = guess_rows(rows)[0]
    assert (guess.format, guess.columns) == ("documents", {"text": "text"})
    assert "may be messages of a chat, but no column names the speakers" in guess.doubts[1]


def test_messages_of_conversations_that_interleave_are_found(tmp_path):
    rows = [
        {"ticket": i % 8, "sent": f"2024-01-{28 - i // 8} 10:00", "who": who, "said": text(i)}
        for i, (who, text) in enumerate([("agent", answer)] * 8 + [("customer", question)] * 8)
    ]
    trial = proposed(tmp_path, [{**row, "from": row.pop("who")} for row in rows])
    assert trial.guess.columns == {"conversation": "ticket", "order": "sent", "role": "from", "content": "said"}
    assert len(trial.records) == 8


@pytest.mark.skipif(not REAL.exists(), reason="needs the public datasets")
@pytest.mark.parametrize(
    ("name", "format", "columns"),
    [
        ("dolly_15k/databricks-dolly-15k.en.jsonl", "dolly", {}),
        ("gsm8k/test.jsonl", "gsm8k", {}),
        ("hh_rlhf/harmless-base_test.jsonl.gz", "hh", {}),
        ("oasst1/en-validation.jsonl", "oasst", {}),
        ("oasst1/en_100_tree.jsonl", "oasst", {}),
        ("sharegpt/glaive_toolcall_zh_demo.json", "sharegpt", {}),
        ("axolotl_fixtures/alpaca/alpaca.json", "alpaca", {}),
        ("chitchat_byu_sample/sample_conversation.json", "chitchat", {}),
        ("dailydialog/dialogues_test.txt", "dailydialog", {}),
        ("messages_jsonl/small_coqa_10.jsonl", "messages", {}),
        ("messages_jsonl/mlx_wwdc25_prompt_completion.jsonl", "messages", {}),
        ("messages_jsonl/v1_sft_demo.jsonl", "table", {"messages": "messages", "train": "loss_weight"}),
        ("korean_chatbot/ChatbotData.csv", "table", {"prompt": "Q", "response": "A"}),
        ("personality_chat", "table", {"prompt": "Question", "response": "Answer"}),
        ("taskmaster4/data_07.json", "table", {"messages": "utterances", "role": "speaker", "content": "text"}),
    ],
)
def test_public_datasets_are_recognised(name, format, columns, tmp_path):
    trial = propose(take_sample(REAL / name))
    assert (trial.guess.format, trial.guess.columns) == (format, columns)
    assert trial.share > 0.95
