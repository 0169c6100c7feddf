import csv
from io import StringIO

from hypothesis import given
from hypothesis import strategies as st

from chatmill.report.summary import tab_separated, table_of_latency, table_of_sources, table_of_validation


def times(first, each):
    return {"ttft_ms": {"p50": first, "p95": 99.0}, "token_ms": {"p50": each, "p95": 99.0}}


def test_each_source_is_a_row():
    evaluation = {"bits_per_byte": {"all": 1.0, "by_source": {"letters": 2.25, "talk": 1.5}}}
    assert table_of_sources(evaluation) == "source\tbits_per_byte\nletters\t2.25\ntalk\t1.5\n"


def test_each_step_that_measures_validation_is_a_row():
    curve = {"loss": [(1.0, 7.5), (2.0, 6.5)], "validation_bits_per_byte": [(2.0, 3.25)]}
    assert table_of_validation(curve) == "step\tbits_per_byte\n2.0\t3.25\n"


HEADER = "prompt_tokens\tonnx_first_token_ms\tonnx_token_ms\tpytorch_first_token_ms\tpytorch_token_ms"


def test_each_length_of_prompt_is_a_row():
    benchmark = {
        "pytorch": {"cache": {"128": times(7.0, 1.5), "16": times(5.0, 1.0)}, "recompute": {"16": times(9.0, 9.0)}},
        "onnx": {"cache": {"16": times(0.5, 0.25), "128": times(2.0, 0.75)}},
        "onnx_int4": {"cache": {"16": times(0.25, 0.125)}},
        "limit": {"token_ms": 0.125},
    }
    assert table_of_latency(benchmark).splitlines() == [HEADER, "16\t0.5\t0.25\t5.0\t1.0", "128\t2.0\t0.75\t7.0\t1.5"]


CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


@given(st.lists(st.tuples(CELLS, CELLS)))
def test_cells_are_read_as_they_were_written(rows):
    written = StringIO(tab_separated(("one", "two"), rows), newline="")
    assert [tuple(row) for row in csv.reader(written, delimiter="\t")][1:] == rows
