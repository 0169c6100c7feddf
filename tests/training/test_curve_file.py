import csv
import math
import os

from chatmill.training.trainer import LossTotals
from chatmill.training.validation import HEADER, CurveFile, curve_line

LINES = [f"{step}\t4.5\t3.5\t\t0.01\n" for step in range(1, 4)]


def test_the_file_grows_by_whole_lines(tmp_path):
    file = tmp_path / "train.tsv"
    curve, seen = CurveFile(file), [file.read_text()]
    for line in LINES:
        curve.append(line)
        seen.append(file.read_text())
    assert seen == [HEADER + "".join(LINES[:count]) for count in range(4)] and curve.text == seen[-1]


def test_a_resumed_curve_loses_the_lines_after_its_state(tmp_path):
    killed = CurveFile(tmp_path / "train.tsv")
    killed.append(LINES[0])
    state = killed.text
    killed.append(LINES[1])
    resumed = CurveFile(tmp_path / "train.tsv")
    resumed.restart(state)
    resumed.append(LINES[2])
    assert (tmp_path / "train.tsv").read_text() == HEADER + LINES[0] + LINES[2]


def test_a_file_that_cannot_be_written_ends_no_run_but_is_completed_in_the_end(tmp_path):
    file = tmp_path / "folder/train.tsv"
    curve = CurveFile(file)
    curve.append(LINES[0])
    file.parent.mkdir()
    curve.append(LINES[1])
    curve.complete()
    assert file.read_text() == curve.text == HEADER + LINES[0] + LINES[1]


def test_a_complete_file_is_not_written_again(tmp_path):
    file = tmp_path / "train.tsv"
    curve = CurveFile(file)
    os.utime(file, (0, 0))
    curve.complete()
    assert file.stat().st_mtime == 0


def test_other_processes_have_the_curve_alone(tmp_path):
    curve = CurveFile(None)
    curve.append(LINES[0])
    curve.complete()
    assert curve.text == HEADER + LINES[0] and not list(tmp_path.iterdir())


def test_each_source_has_a_column_whatever_its_name():
    curve = CurveFile(None, ["talk", "a\tb\u2028c"])
    of_source = LossTotals(nats=math.log(2) * 6, bytes=4)
    line = curve_line(3, LossTotals(6.0, 2.0, 0.0, 0), LossTotals(), 0.01, 0.5, [of_source, LossTotals()])
    (row,) = csv.DictReader((curve.text + line).splitlines(), delimiter="\t")
    assert row["gradient_norm"] == "0.5"
    assert (row["validation_bits_per_byte/talk"], row["validation_bits_per_byte/a b c"]) == ("1.5", "")


def test_what_was_not_measured_is_empty():
    assert curve_line(3, LossTotals(6.0, 2.0, 0.0, 0), LossTotals(), 0.01, None) == "3\t3\t\t\t0.01\t\n"
