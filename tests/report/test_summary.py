import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.report.inputs import Change, Origin
from chatmill.report.page import page
from chatmill.report.summary import first_screen, key_figures, plot_tables, significant, speeds_of

EVALUATION = {
    "model": {"precision": "bfloat16", "compile": True},
    "bits_per_byte": {"all": 0.382457, "assistant": 0.078376, "baselines": {"xz": 1.069187, "ngram": 0.628857}},
    "skills": {"macro": 0.973077, "adding": 1.0, "held_back": {"macro": 0.963462}},
    "stops_rate": 1.0,
    "sense": {"first": 0.812345, "later": 0.75, "noisy": 0.5, "parrot": {"first": 0.25, "later": 0.0, "noisy": 0.125}},
    "recall": 0.875,
    "verbatim": {"share": 0.15625, "longest_max": 23, "true": {"share": 0.0}},
    "engines": {"pytorch": {"size_mb": 6.891904}, "onnx": {"size_mb": 7.164703}},
    "tokenizer": {"bytes_per_token": 2.897111},
}
MIX = {
    "conversations": {"train": 32173, "test": 3115},
    "rejected": {"talk": {"role_order": 3, "empty_turn": 1}, "more": {"bad_json": 2}},
    "duplicates": 725,
    "leaked": 0,
}
CURVE = {"loss": [(8.0, 6.5), (16.0, 3.5)], "validation_bits_per_byte": [(8.0, 3.0), (16.0, 2.5)]}
SOFT = {"bits_per_byte": {"table": {"all": 0.448225}, "plugged_in": {"all": 0.547413}}}


def times(first, each):
    return {"ttft_ms": {"p50": first, "p95": 99.0}, "token_ms": {"p50": each, "p95": 99.0}}


BENCHMARK = {
    "machine": {"processor": "fast", "threads": 2},
    "pytorch": {"cache": {"100": times(7.0, 1.5), "16": times(5.0, 1.25)}, "recompute": {"128": times(9.0, 9.0)}},
    "onnx": {"cache": {"16": times(0.5, 0.125), "100": times(2.0, 0.25), "512": times(7.5, 0.5)}}
    | {"peak_memory_mb": 106.8},
    "onnx_int4": {"cache": {"100": times(0.1, 0.1)}, "peak_memory_mb": 50.0},
    "tokenizer": {"encode_mb_per_s": 7.452},
}
ALL = {"bits_per_byte": 0.3825, "bits_per_byte_answers": 0.07838, "bits_per_byte_xz": 1.069}
ALL |= {"bits_per_byte_ngram": 0.6289, "validation_bits_per_byte": 2.5, "soft_tokenizer_bits_per_byte": 0.5474}
ALL |= {"skills": 0.9731, "skills_held_back": 0.9635, "stops_rate": 1.0, "sense_first": 0.8123, "sense_later": 0.75}
ALL |= {"sense_noisy": 0.5, "recall": 0.875, "verbatim": 0.1562, "model_mb": 7.165, "bytes_per_token": 2.897}
ALL |= {"train_conversations": 32173, "rejected": 6, "leaked": 0, "processor": "fast, bfloat16, compiled"}


def test_each_key_figure_comes_from_where_it_was_measured():
    found = key_figures(MIX, CURVE, EVALUATION, BENCHMARK, SOFT)
    timed = {"first_token_ms": 2.0, "token_ms": 0.25, "pytorch_token_ms": 1.5, "peak_mb": 106.8}
    timed |= {"encode_mb_per_s": 7.452}
    assert found == ALL and list(found) == list(ALL) and speeds_of(BENCHMARK) == timed and len(found | timed) <= 25


def test_what_was_not_measured_is_left_out():
    assert key_figures({}, {}, {}, {}, {}) == {}
    assert key_figures({"rejected": {}}, {}, {"stops_rate": None}, {}, {}) == {"rejected": 0}
    assert speeds_of({"onnx": {"cache": {}}}) == {}


def test_a_model_without_a_graph_has_the_figures_of_pytorch_alone():
    found = speeds_of({"pytorch": BENCHMARK["pytorch"] | {"peak_memory_mb": 310.0}})
    assert found == {"pytorch_token_ms": 1.5}


@pytest.mark.parametrize(
    ("prompts", "nearest"), [(["16", "128", "512"], 128), (["16"], 16), (["512", "992"], 512), (["1", "300"], 1)]
)
def test_times_are_those_after_the_prompt_nearest_to_128_tokens(prompts, nearest):
    measured = {prompt: times(float(prompt), float(prompt)) for prompt in prompts}
    found = speeds_of({"onnx": {"cache": measured}})
    assert found == {"first_token_ms": nearest, "token_ms": nearest}


@given(st.floats(1e-9, 1e9))
def test_a_number_is_rounded_by_at_most_half_of_its_fourth_digit(value):
    assert significant(value) == pytest.approx(value, rel=5.001e-4, abs=0)
    assert significant(significant(value)) == significant(value)


def first_rows(former, changes=(), intervals=None):
    """The first screen as text, a line for each row, of a run after a commit with these figures."""
    origin = Origin(datetime.now(UTC), None, "abcdef0123", "A run", False, [*changes], former)
    figures = key_figures(MIX, CURVE, EVALUATION, BENCHMARK, SOFT) | speeds_of(BENCHMARK)
    evaluation = EVALUATION | {"intervals": intervals or {}}
    html = page(origin, first_screen(evaluation, BENCHMARK, figures, former), evaluation)
    first = re.findall('<div class="overview">(.*?)</table>', html, re.DOTALL)[0]
    return [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in first.split("<tr>")]


def test_each_figure_stands_beside_its_interval_others_and_the_former_value():
    former = {"processor": ALL["processor"], "bits_per_byte": 0.4, "skills": 0.99, "sense_first": 0.8123}
    former |= {"model_mb": 7.0, "stops_rate": {"earlier": 1}}
    bits = {"all": [0.37, 0.39], "baselines": {"ngram": [0.6, 0.7]}}
    changes = [Change(f"a.{letter}", None, "2") for letter in "bcdef"]
    news, head, *rows = first_rows(former, changes, {"bits_per_byte": bits, "skills": {"macro": [0.95, 0.995]}})
    counts = "Figures since commit abcdef0: 1 now better, 1 now worse, 1 no clear change, 1 same."
    assert news == f"{counts} Changed: a.b – → 2; a.c – → 2; a.d – → 2; 2 more. Key figures"
    assert head == "this run commit abcdef0" and len(rows) == 13
    for row in (
        "counted n-grams: 0.629 (0.600 to 0.700); xz: 1.069 0.383 0.370 to 0.390 0.400 now better",
        "Skills, known phrasings 97.3 % 95.0 to 99.5 % 99.0 % no clear change",
        "Sense, first replies the answer to the nearest training message: 25.0 % 81.2 % 81.2 % same",
        "Time per token 0.25 ms 95 % within 99 ms –",
        "Complete answers 100.0 % –",
    ):
        assert row in (rows[0].removeprefix("Bits per byte, all text "), *rows)
    assert any(row.startswith("Size of the graph 7.17 MB 7 MB now worse") for row in rows)


def test_without_a_commit_nothing_is_compared():
    assert "Time per token 0.25 ms 95 % within 99 ms" in first_rows({})
    assert "commit" not in first_rows({})[0]
    assert first_rows({"recall": "?", "verbatim_of_old": 1})[0].startswith("Figures since commit abcdef0: none can be")


# tables for plots


def test_each_source_is_a_row():
    evaluation = {"bits_per_byte": {"all": 1.0, "by_source": {"letters": 2.25, "talk": 1.5}}}
    assert plot_tables({}, evaluation, {})["bits_per_byte.tsv"] == "source\tbits_per_byte\nletters\t2.25\ntalk\t1.5\n"


def test_each_step_that_measures_validation_is_a_row():
    curve = {"loss": [(1.0, 7.5), (2.0, 6.5)], "validation_bits_per_byte": [(2.0, 3.25)]}
    assert plot_tables(curve, {}, {})["validation.tsv"] == "step\tbits_per_byte\n2.0\t3.25\n"


HEADER = "prompt_tokens\tonnx_first_token_ms\tonnx_token_ms\tpytorch_first_token_ms\tpytorch_token_ms"


def test_each_length_of_prompt_is_a_row():
    benchmark = {
        "pytorch": {"cache": {"128": times(7.0, 1.5), "16": times(5.0, 1.0)}, "recompute": {"16": times(9.0, 9.0)}},
        "onnx": {"cache": {"16": times(0.5, 0.25), "128": times(2.0, 0.75)}},
        "onnx_int4": {"cache": {"16": times(0.25, 0.125)}},
        "limit": {"token_ms": 0.125},
    }
    assert plot_tables({}, {}, benchmark)["latency.tsv"].splitlines() == [
        HEADER,
        "16\t0.5\t0.25\t5.0\t1.0",
        "128\t2.0\t0.75\t7.0\t1.5",
    ]
