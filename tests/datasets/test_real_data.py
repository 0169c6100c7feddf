"""The formats on published datasets; skipped where these are missing."""

from collections import Counter

import pytest

from chatmill.conversation import check_turns, parse
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.records import records
from chatmill.datasets.repair import SourceParameters, Tally
from support.paths import SHARED

DATA = SHARED / "chat"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}")

FILES = [
    ("dailydialog", "dailydialog/dialogues_test.txt", {"accepted": 1000}),
    ("dolly", "dolly_15k/databricks-dolly-15k.en.jsonl", {"accepted": 15015}),
    ("gsm8k", "gsm8k/train.jsonl", {"accepted": 7473}),
    ("gsm8k", "gsm8k/test.jsonl", {"accepted": 1318, "bad_call": 1}),
    ("gsm8k", "gsm8k/test_socratic.jsonl", {"accepted": 1318, "bad_call": 1}),
    ("hh", "hh_rlhf/harmless-base_test.jsonl.gz", {"accepted": 2308, "empty_turn": 4}),
    ("chitchat", "chitchat_byu_sample/sample_conversation.json", {"accepted": 1}),
    ("sharegpt", "sharegpt/dummy_conversation.json", {"accepted": 500}),
    ("sharegpt", "sharegpt/glaive_toolcall_en_demo.json", {"accepted": 300}),
    ("sharegpt", "sharegpt/glaive_toolcall_zh_demo.json", {"accepted": 298, "tool_order": 2}),
    ("sharegpt", "axolotl_fixtures/conversation.json", {"accepted": 1}),
    ("sharegpt", "axolotl_fixtures/conversation.missingturns.json", {"empty_turn": 1}),
    ("alpaca", "axolotl_fixtures/alpaca/alpaca.json", {"accepted": 2}),
    ("messages", "messages_jsonl/json_mode_dataset.jsonl", {"accepted": 500}),
    ("messages", "messages_jsonl/small_coqa_10.jsonl", {"accepted": 10}),
    ("messages", "messages_jsonl/v1_sft_demo.jsonl", {"accepted": 500}),
    ("messages", "messages_jsonl/reason_tool_use_demo_50.jsonl", {"accepted": 50}),
    ("messages", "messages_jsonl/mlx_wwdc25_prompt_completion.jsonl", {"accepted": 1800}),
    ("messages", "messages_jsonl/eval_instances_tulu_1.jsonl", {"missing_field": 996}),
    ("personachat", "personality_chat/Queries_Responses_Friendly_QnAMaker.tsv", {"accepted": 165}),
    ("personachat", "personality_chat/Scenario_Responses_Friendly.tsv", {"missing_field": 161}),
]


@pytest.mark.parametrize(("name", "file", "expected"), FILES, ids=[file for _, file, _ in FILES])
def test_every_entry_is_a_conversation_or_is_counted(name, file, expected):
    found = Counter()
    for number, entry in enumerate(records("real", SourceParameters(path=DATA / file, format=name), Tally())):
        if isinstance(entry, Reject) and entry.part:
            assert entry.reason == "after_last_answer"
            continue
        found[entry.reason if isinstance(entry, Reject) else "accepted"] += 1
        if not isinstance(entry, Reject) and number % 20 == 0:
            check_turns(parse(entry.text))
    assert found == expected
