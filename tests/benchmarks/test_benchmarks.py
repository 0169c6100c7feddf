import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import export_onnx
from chatmill.benchmarking.latency import MachineLimits, Workload
from chatmill.checkpoints.configuration import ModelConfig
from chatmill.inference.model_loading import load_engine
from chatmill.training.hardware import choose_precision
from support.tiny import CONFIG, write_model
from support.training_runs import write_tokens

sys.path.insert(0, str(Path(__file__).parent))

import ablation
import latency
import learning
import near_duplicates
import peers
import scale

import soft_tokenizer
import training

CONTEXT = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Some short dialogues, prepared and encoded."""
    folder = tmp_path_factory.mktemp("data")
    lines = (f"How are the {i} ? __eou__ {'Fine . ' * (i % 5 + 1)}__eou__\n" for i in range(400))
    (folder / "talks.txt").write_text("".join(lines))
    learning.make_data(folder, {"dailydialog": folder / "talks.txt"}, 320, validation_share=0.2)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return learning.Data(folder)


@pytest.fixture
def config(data):
    return ModelConfig.from_depth(1, vocab_size=data.vocab_size, context=CONTEXT)


def make(kind, data, config):
    if kind == "chatmill":
        return learning.Chatmill(data, config, 1)
    if kind == "autoresearch":
        return training.Autoresearch(data, config, 1, batch=4096, compile=False)
    return {"plain": training.Plain, "transformers": training.Transformers}[kind](data, config, 0.01, "float32")


def test_steps_fill_the_time_as_fast_as_they_turn_out_to_be(monkeypatch):
    now, taken = 0.0, []
    monkeypatch.setattr(learning, "perf_counter", lambda: now)
    for step in learning.planned(10.0, typical=3.0, limit=None):
        taken.append(step)
        now += 1
    assert taken == [(0, 3), *((done, 10) for done in range(1, 10))]


def test_equal_chances_take_as_many_bits_as_the_vocabulary_has_for_each_token(data):
    ids, _, _ = data.validation
    text = data.num_bytes[ids]
    expected = np.log2(data.vocab_size) * (text > 0).sum() / text.sum()
    everything, _ = data.bits_per_byte(lambda ids: torch.zeros(*ids.shape, data.vocab_size), CONTEXT)
    assert everything == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["chatmill", "plain", "transformers", "autoresearch"])
def test_every_competitor_learns_and_counts_no_padding(kind, data, config):
    pytest.importorskip("transformers")
    learner = make(kind, data, config)
    before = data.bits_per_byte(learner.logits, CONTEXT)
    counts = [learner.step(done, 20) for done in range(20)]
    assert data.bits_per_byte(learner.logits, CONTEXT) < before
    assert all(0 < count.useful <= count.all for count in counts)


@pytest.mark.parametrize("kind", ["chatmill", "plain", "transformers", "autoresearch"])
def test_no_competitor_sees_what_comes(kind, data, config):
    pytest.importorskip("transformers")
    learner, ids = make(kind, data, config), torch.arange(CONTEXT)[None]
    learner.step(0, 1)
    changed = torch.cat((ids[:, :20], ids[:, 20:] + 1), dim=1)
    torch.testing.assert_close(learner.logits(ids)[:, :20], learner.logits(changed)[:, :20])


@pytest.mark.slow
def test_every_choice_changes_what_is_learnt(folder, monkeypatch):
    monkeypatch.setattr(ablation, "CONTEXT", CONTEXT)
    same = {"no warm-up", choose_precision("auto")}  # for as few steps nobody warms up; the precision of this machine
    chosen = ablation.CHOICES.keys() - same
    learnt = {ablation.train(str(folder), choice, 1, 1.0, 11, 2)["all"] for choice in chosen}
    assert len(learnt) == len(chosen)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny model, as engines and peers read it."""
    folder = tmp_path_factory.mktemp("models")
    export_onnx.main(write_model(folder / "model"), folder / "onnx", quantize=[])
    return folder


def greedy(folder, prompt, count):
    """The ids of greedy decoding with PyTorch."""
    engine, ids = load_engine(folder / "model", "pytorch", device="cpu", threads=1), list(prompt)
    for _ in range(count):
        ids.append(int(engine.append(ids[engine.length :]).argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    "name",
    [
        "onnx",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (*latency.EXACT, *peers.WAITING) if name != "onnx"),
    ],
)
def test_every_engine_answers_with_the_likeliest_ids_and_stands_still_between(name, models):
    if name not in (*peers.names(), *peers.WAITING) or name in ("ctranslate2", "llama_f32"):
        pytest.skip(f"{name} is not installed, or needs files of its own")
    with latency.started([name], models, threads=1) as (worker,):
        answers = [worker.answer([1, 2, 3], 4) for _ in range(2)]
        state = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert [answer.ids for answer in answers] == [greedy(models, [1, 2, 3], 5)] * 2
    assert all(time > 0 for answer in answers for time in answer.ms) and state in "tT"


def test_ratios_are_taken_within_a_round():
    race = latency.Race(Workload(CONFIG.to_json(), {"onnx": 1000}))
    for slowness in (1, 10):
        limits = MachineLimits({1000: 1e9 / slowness}, 1e30)
        race.add(8, limits, {"onnx": [4 * slowness, 2 * slowness, 2 * slowness], "genai": [8 * slowness, 3 * slowness]})
    assert race.times_as_fast("onnx", "genai", "token", 8) == [1.5, 1.5]
    assert race.times_as_fast("onnx", "genai", "ttft", 8) == [2, 2]
    assert race.at_best("onnx", "genai", "ttft", 8) == 2
    least = race.needs.min_token_ms("onnx", 8, MachineLimits({1000: 1e9}, 1.0))
    assert race.times_as_fast("onnx", "limit", "token", 8) == pytest.approx([least / 2] * 2)


def test_the_same_work_is_the_same_ids_after_every_prompt():
    race = latency.Race(Workload(CONFIG.to_json(), {}))
    race.ids = {("onnx", 8): [1, 2], ("onnx", 16): [3, 4], ("genai", 8): [1, 2], ("genai", 16): [3, 5]}
    assert race.same_ids("genai", "onnx") == 0.75


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """The files that the comparison of soft tokenizers reads; both tokenizers are of bytes."""
    folder = tmp_path_factory.mktemp("talks")
    write_tokens(folder)
    for name in (soft_tokenizer.OWN, soft_tokenizer.BYTES):
        (folder / name).symlink_to(folder)
    return folder


PLAIN = ("bytes",)
SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in soft_tokenizer.WAYS if way not in PLAIN]


@pytest.mark.parametrize("way", [*PLAIN, *SLOW])
def test_every_way_between_bytes_and_model_learns(talks, way):
    lines = soft_tokenizer.train(str(talks), str(talks / "validation.jsonl"), way, 1, 3.0, 1)
    ways = [way, soft_tokenizer.PLUGGED, soft_tokenizer.TUNED] if way == "table" else [way]
    assert [line["way"] for line in lines] == ways
    assert all(0 < line["clean"] < 6 and line["typos"] > 0 and line["token_ms"] > 0 for line in lines)


def test_rows_are_means_over_seeds_with_half_the_distance_of_the_extremes():
    numbers = dict.fromkeys(("assistant", "typos", "case", "rare_words", "seconds", "token_ms", "tokens_per_byte"), 1.0)
    lines = [{"way": "table", "clean": bits, "parameters": 1_500_000} | numbers for bits in (0.25, 0.5, 0.75)]
    *_, row = soft_tokenizer.table(lines)
    assert row.startswith("| table | 0.500 ± 0.250 | 1.000 ± 0.000 |") and "| 1.50 M |" in row


def test_near_duplicates_are_planted_in_conversations_that_are_read_once(tmp_path):
    (tmp_path / "dailydialog").mkdir()
    lines = "How are you ? __eou__ Fine . __eou__\n" * 2 + "Who is it ? __eou__ Me . __eou__\n"
    (tmp_path / "dailydialog" / "dialogues_text.txt").write_text(lines)
    assert [near_duplicates.texts_of(text) for text in near_duplicates.read(tmp_path)] == [
        ["How are you ?", "Fine ."],
        ["Who is it ?", "Me ."],
    ]


def test_stages_of_data_are_measured(capfd):
    scale.main([0.0002], [1], ["local"], None)
    rows = [line.split() for line in capfd.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == [*scale.COMMANDS]
    assert all(row[-2:] == ["the", "same"] for row in rows)
