import json
import re
from html.parser import HTMLParser

import pytest

from chatmill.conversation import Message, Record, render
from chatmill.report.summary import key_figures, speeds_of
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from report import main
from support.tiny import VOCABULARY

EVALUATION = {
    "template": "chatml",
    "bits_per_byte": {
        "all": 0.9,
        "assistant": 0.4,
        "by_source": {"talk": 1.1},
        "baselines": {"uniform": 8.0, "order0": 4.5, "xz": 1.9, "ngram": 1.3},
        "ngram_by_source": {"talk": 1.35},
        "ngram_order": 4,
        "ngram_train_tokens": 8000,
    },
    "skills": {"macro": 0.95, "adding": 0.95, "held_back": {"macro": 0.75, "adding": 0.75}},
    "stops_rate": 0.995,
    "sense": {"first": 0.8125, "later": 0.6875, "parrot": {"first": 0.1875, "later": 0.0625}},
    "recall": 0.5625,
    "verbatim": {
        "share": 0.625,
        "longest_mean": 6.5,
        "longest_max": 23,
        "true": {"share": 0.0, "longest_mean": 3.25, "longest_max": 16},
    },
    "model": {"parameters": 1_720_000, "layers": 3, "heads": 4, "width": 256, "context": 512, "steps": 900}
    | {"conversations": {"cut": 7042, "rejected": 0}},
    "wrong_answers": {"adding": [{"question": "1+1?", "answer": "<3>", "expected": "2"}]},
    "intervals": {
        "bits_per_byte": {"all": [0.85, 0.95]},
        "skills": {"macro": [0.915, 0.985]},
        "sense": {"first": [0.71, 0.885]},
        "verbatim": {"true": {"share": [0, 0.08]}},
    },
    "counts": {"verbatim": {"true": {"share": 44}}, "sense": {"first": 80}},
    "engines": {
        "pytorch": {"bits_per_byte": 0.9, "skills_macro": 0.9, "size_mb": 9.8},
        "onnx": {"bits_per_byte": 0.9005, "skills_macro": 0.9, "size_mb": 10.0},
        "onnx_int4": {"bits_per_byte": 1.5, "skills_macro": 0.8, "size_mb": 2.0},
    },
    "tokenizer": {"bytes_per_token": 3.4, "tokens_per_message": {"chatml": 17.5, "markers": 15.25}},
}
TIMES = {"ttft_ms": {"p50": 4.0, "p95": 5.0}, "token_ms": {"p50": 2.0, "p95": 3.0}}
SLOWER = {"ttft_ms": {"p50": 40.0, "p95": 50.0}, "token_ms": {"p50": 20.0, "p95": 30.0}}
BENCHMARK = {
    "machine": {"processor": "<fast>", "threads": 2},
    "onnx": {"cache": {"16": TIMES, "128": TIMES}, "recompute": {"16": SLOWER}, "peak_memory_mb": 96.0},
    "pytorch": {"cache": {"16": SLOWER, "128": SLOWER}},
    "limit": {"token_ms": 0.5, "reached": {"onnx": 0.25}},
}
MIX = {
    "conversations": {"train": 90, "test": 10},
    "bytes": {"train": 9000, "test": 1000},
    "rejected": {"talk": {"role_order": 3}},
    "duplicates": 5,
    "leaked": 1,
    "near_duplicates": {"train": 2718, "leaked": 3142},
}
CHAT = [Message.from_text("user", "Hi"), Message.from_text("assistant", "Ask jo@example.org, please.")]
TRAIN = Record("talk", "g", render(CHAT))
CURVE = "step\tloss\tbits_per_byte\tvalidation_bits_per_byte\n1\t7.5\t3.5\t\n2\tnan\t3.0\t3.25\n"
"""Validation is measured at some steps only, and one loss is not a number."""


class Outline(HTMLParser):
    """The elements of a page, checked to be closed in order, and its text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in ("meta", "input"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.text += data if "style" not in self.open else ""


@pytest.fixture(scope="module")
def run_stage(tmp_path_factory):
    """Runs the stage on metrics, each time in a new folder."""

    def run(evaluation=EVALUATION, benchmark=BENCHMARK, mix=MIX, curve=CURVE, samples=(), sample="Don't!", soft=None):
        folder = tmp_path_factory.mktemp("report")
        write_folder(VOCABULARY, folder / "tokenizer")
        metrics = {"mix": mix, "evaluate": evaluation, "benchmark": benchmark, "soft_tokenizer": soft or {}}
        for name, content in metrics.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        (folder / "train.tsv").write_text(curve)
        (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
        (folder / "train.jsonl").write_text(TRAIN.to_json())
        read = ("mix.json", "train.jsonl", "train.tsv", "evaluate.json", "benchmark.json", "soft_tokenizer.json")
        files = [folder / name for name in read]
        written = (folder / "report", folder / "summary.json", folder / "speeds.json")
        settings = {"sample": sample, "train_model": {"context": 8}}
        main(*files, folder / "samples.jsonl", folder / "tokenizer", *written, **settings)
        return folder

    return run


@pytest.fixture(scope="module")
def write_page(run_stage):
    """Runs the stage, and reads the page that it wrote."""
    return lambda *files, **given: (run_stage(*files, **given) / "report" / "index.html").read_text(encoding="utf-8")


HOSTILE = "</p><script>alert(1)</script>&amp;\" onload='x'\u202eevil\0"


def test_the_page_fetches_nothing_and_runs_nothing(write_page):
    page = write_page(samples=[{"prompt": HOSTILE, "answer": HOSTILE, "stopped": False}], sample=HOSTILE)
    outline = Outline(page)
    assert {"script", "link", "img", "iframe"}.isdisjoint(name for name, _ in outline.elements)
    assert not re.search(r"https?:|@import|url\(", page)
    given = [one for _, attributes in outline.elements for one in attributes.items()]
    assert not any(key.startswith("on") or key == "src" for key, _ in given)
    links = {value for key, value in given if key == "href"}
    assert links and links <= {f"#{value}" for key, value in given if key == "id"}  # of sections of the page
    assert outline.text.count("</p><script>alert(1)</script>&amp;\" onload='x'\\u202eevil\\u0000") == 2


SOFT = {
    "collapsed": False,
    "kept": {"nearest": {"cosine": 0.75}, "variance_explained": {"plain": 0.625}, "mean_cosine": 0.5},
    "held_out": {"nearest": {"cosine": 0.125}, "variance_explained": {"plain": 0.0625}, "mean_cosine": 0.25},
    "bits_per_byte": {"table": {"all": 1.25, "assistant": 1.0}, "plugged_in": {"all": 1.375, "assistant": 1.125}},
    "noisy": {"rare_words": {"table": {"all": 2.25, "assistant": None}}},
}


def test_every_figure_stands_on_the_page(write_page):
    of_data = {"prompt": "And then?", "answer": "Ha", "stopped": False, "true": "Then <so>.", "messages_before": 2}
    shown = Outline(write_page(samples=[{"prompt": "Hi", "answer": "Ho", "stopped": True}, of_data])).text
    assert "after 2 messages: And then?" in shown and "Then <so>." in shown
    figures = "0.900|0.400|1.100|1.900|1.300|1.350|95.0 %|75.0 %|99.5 %|9,000|role order|2,718|3,142|HiHo|<fast>"
    for figure in ("up to 4 tokens were counted in 8,000 tokens of training", *figures.split("|")):
        assert figure in shown


def test_the_page_says_what_model_it_is_of(write_page):
    shown = Outline(write_page()).text
    assert "1.72 million parameters: 3 layers, 4 heads, width 256, context of 512 tokens" in shown
    assert "processor <fast>; threads 2" in shown and "900 steps, 7,042 conversations cut to" in shown


def test_sense_and_recall_stand_beside_the_parrot(write_page):
    shown = Outline(write_page()).text
    for figure in ("81.2 %71.0 to 88.5 %; 80 cases", "18.8 %", "68.8 %", "6.2 %", "56.2 %"):
        assert figure in shown
    assert "typing errors" not in shown and "0.0 % (0.0 to 8.0 %)" in shown
    assert "6.5 words in the mean and 23 at most in the model's answers, 3.25 words in the mean and 16 at" in shown
    assert "Sense, " not in Outline(write_page(EVALUATION | {"sense": {}, "recall": None})).text


def test_the_key_figures_of_what_was_measured_are_written(run_stage):
    folder = run_stage(soft=SOFT)
    curve = {"validation_bits_per_byte": [(2.0, 3.25)]}
    figures = key_figures(MIX, curve, EVALUATION, BENCHMARK, SOFT)
    assert figures["bits_per_byte"] == 0.9 and figures["rejected"] == 3 and len(figures) == 19
    assert json.loads((folder / "summary.json").read_text()) == figures
    assert json.loads((folder / "speeds.json").read_text()) == speeds_of(BENCHMARK)


def test_tables_for_plots_lie_beside_the_page(run_stage):
    folder = run_stage() / "report"
    assert (folder / "validation.tsv").read_text() == "step\tbits_per_byte\n2.0\t3.25\n"
    assert (folder / "bits_per_byte.tsv").read_text() == "source\tbits_per_byte\ntalk\t1.1\n"
    assert (folder / "latency.tsv").read_text().splitlines()[1:] == [
        "16\t4.0\t2.0\t40.0\t20.0",
        "128\t4.0\t2.0\t40.0\t20.0",
    ]


def test_what_was_not_measured_is_left_out(write_page):
    outline = Outline(write_page(evaluation={}, benchmark={}, mix={}, curve="step\tloss\n"))
    assert [name for name, _ in outline.elements].count("h2") == 3  # this run, tokenizer and data
    assert "Nothing was measured." in outline.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("evaluate", "[1]", r"evaluate\.json: expected an object"),
        ("benchmark", "{", r"benchmark\.json: not JSON"),
        ("curve", "step\tloss\n1\tx\n", r"train\.tsv:2: expected numbers"),
        ("train", "{}\n", r"train\.jsonl: near byte 0: not a record"),
        ("samples", '{"prompt": "Hi"}\n', r"samples\.jsonl:1: expected a sample, with answer, stopped"),
        ("mix", "\xff", r"mix\.json: not UTF-8 at byte 0"),
    ],
)
def test_bad_input_is_named(tmp_path, name, content, message):
    write_folder(VOCABULARY, tmp_path / "tokenizer")
    files = {"mix": "mix.json", "train": "train.jsonl", "curve": "train.tsv", "evaluate": "evaluate.json"}
    files |= {name: f"{name}.json" for name in ("benchmark", "soft_tokenizer")} | {"samples": "samples.jsonl"}
    for key, file in files.items():
        good = {"curve": CURVE, "samples": "", "train": ""}.get(key, "{}")
        (tmp_path / file).write_text(content if key == name else good, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        inputs = (tmp_path / file for file in (*files.values(), "tokenizer", "report", "summary.json", "speeds.json"))
        main(*inputs, sample="Hi", train_model={})


def test_the_data_is_shown_by_source(write_page):
    messages = {"read": 40, "kept": 37, "rejected": {"empty_turn": 3}}
    counts = {"messages": messages, "bytes": {"read": 900, "kept": 877, "rejected": {}}, "repaired": {"same_role": 4}}
    written = write_page(mix=MIX | {"read": {"talk": counts}})
    page = Outline(written).text
    assert '<td><span class="words">empty turn 3</span></td>' in written  # takes several lines where it is long
    assert all(text in page for text in ("empty turn 3", "same role 4", "877"))
    assert "of 1 conversations of the training set" in page
    assert "e-mail addresses" in page and "Ask jo@example.org, please." in page
