import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.calculator import calculate
from support.paths import SHARED

GSM8K = SHARED / "chat/gsm8k/train.jsonl"


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12*3", "36"),
        ("2*(3+4)", "14"),
        ("2+3*4", "14"),
        ("10-4-3", "3"),
        ("16/4/2", "2"),
        (" 7 / 2 ", "3.5"),
        ("1/3", "0.333333"),
        ("-2/3", "-0.666667"),
        ("0.1+0.2", "0.3"),
        (".5 + 5.", "5.5"),
        ("007", "7"),
        ("--3", "3"),
        ("2*-3", "-6"),
        ("-(1-4)", "3"),
        ("3-3", "0"),
        ("-1/9999999", "0"),
        ("500*200", "100000"),
        ("99999999999*99999999999", "9999999999800000000001"),
    ],
)
def test_arithmetic_follows_the_usual_precedence_and_is_exact(expression, result):
    assert calculate(expression) == result


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 2",
        "1+",
        "*2",
        "(1",
        "1)",
        "()",
        "1..2",
        "1,000",
        "50%",
        "2**3",
        "7//2",
        "1e9",
        "0x10",
        "1_0",
        "٣+1",
        "abs(1)",
        "(" * 99,
    ],
)
def test_what_is_no_arithmetic_is_refused(text):
    assert calculate(text) == "error: not arithmetic"


@given(st.text() | st.text("0123456789.+-*/() "))
def test_any_text_gives_a_number_or_an_error(text):
    assert re.fullmatch(r"-?\d+(\.\d{0,5}[1-9])?|error: .+", calculate(text), re.ASCII)


@pytest.mark.skipif(not GSM8K.exists(), reason="gsm8k is not here")
def test_calls_of_gsm8k_give_the_results_written_beside_them():
    answers = [json.loads(line)["answer"] for line in GSM8K.open(encoding="utf-8")]
    calls = [call.rpartition("=") for answer in answers for call in re.findall("<<(.*?)>>", answer)]
    wrong = [call for call, _, result in calls if calculate(call) != calculate(result)]
    assert len(calls) == 23716
    assert wrong == ["560//10", "180//3"]  # whole-number division, which other calls of the data do not use
