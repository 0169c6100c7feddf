import json
import sys
from time import sleep

import pytest

from benchmark import TURN_TOKENS, Case, answer_ms, fitting, main, measure_streaming, percentiles, seconds
from chatmill.conversation import Message, Record, render
from chatmill.tokenizer.binary import write_binary
from export_onnx import main as export
from scripted import ScriptedEngine
from tiny import CONFIG, VOCABULARY, byte_tokenizer, write_model


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """What the stage measures of a tiny model."""
    folder = tmp_path_factory.mktemp("benchmark")
    write_model(folder / "model")
    export(folder / "model", folder / "onnx", quantize=[])
    (folder / "exports").mkdir()
    write_binary(VOCABULARY, folder / "exports" / "tokenizer.bin")
    talk = render([Message.plain("user", "How are you?"), Message.plain("assistant", "Fine, naïvely.")])
    (folder / "test.jsonl").write_text(Record("talk", "talk/1", talk).to_json() * 3)
    files = [folder / name for name in ("test.jsonl", "exports", "model", "onnx", "benchmark.json")]
    main(*files, prompt_tokens=[40, 8, 4096], new_tokens=4, repeats=2, threads=1)
    return json.loads((folder / "benchmark.json").read_text())


def test_every_engine_has_latencies_for_every_prompt_that_fits(metrics):
    for engine, modes in {"pytorch": 2, "onnx": 2, "onnx_hf": 1}.items():
        measured = [metrics[engine][mode] for mode in ("cache", "recompute")[:modes]]
        assert all(list(by_prompt) == ["8", "40"] for by_prompt in measured)
        times = [t for by_prompt in measured for values in by_prompt.values() for t in values.values()]
        assert all(0 < t["p50"] <= t["p95"] for t in times)
    assert "recompute" not in metrics["onnx_hf"]


def test_every_engine_reads_a_turn_after_no_history_and_after_the_longest(metrics):
    for engine in ("pytorch", "onnx", "onnx_hf"):
        assert list(metrics[engine]["turn_ms"]) == ["0", str(CONFIG.max_position_embeddings - TURN_TOKENS)]
        assert all(0 < turn["p50"] <= turn["p95"] for turn in metrics[engine]["turn_ms"].values())


def test_streaming_is_the_share_of_time_that_is_not_the_engines():
    class SlowEngine(ScriptedEngine):
        def append(self, ids):
            sleep(0.002)
            return super().append(ids)

    tokenizer = byte_tokenizer()
    shares = {}
    for kind in (ScriptedEngine, SlowEngine):
        engine = kind([97] * 2000, vocab_size=tokenizer.vocab_size, context=250)
        shares[kind] = measure_streaming(engine, tokenizer, [1, 2, 3], 1)
    assert all(0 < shares[SlowEngine][name] < shares[ScriptedEngine][name] < 1 for name in ("greedy", "sampled"))


def test_memory_is_each_engines_own(metrics):
    assert metrics["pytorch"]["peak_memory_mb"] > metrics["onnx"]["peak_memory_mb"] > 20


def test_limit_counts_the_weights_and_the_cache_once(metrics):
    cache = 40 * 2 * CONFIG.num_hidden_layers * CONFIG.num_key_value_heads * CONFIG.head_dim * 4
    heads = 2 * CONFIG.num_hidden_layers * CONFIG.head_dim
    width, hidden = CONFIG.hidden_size, CONFIG.intermediate_size
    projections = width * CONFIG.head_dim * 2 * (CONFIG.num_attention_heads + CONFIG.num_key_value_heads)
    norms = width * (2 * CONFIG.num_hidden_layers + 1)
    weights = CONFIG.vocab_size * width + CONFIG.num_hidden_layers * (projections + 3 * width * hidden) + norms + heads
    limit = metrics["limit"]
    assert 0 <= limit["bytes_per_token"] - (4 * weights + cache) < 5000
    assert limit["token_ms"] == pytest.approx(limit["bytes_per_token"] / limit["bandwidth_gb_per_s"] / 1e6, rel=1e-3)
    assert set(limit["reached"]) == {"pytorch", "onnx", "onnx_hf"}


def test_tokenizer_and_machine_are_described(metrics):
    assert set(metrics["tokenizer"]) == {"encode_mb_per_s", "decode_mb_per_s", "lookup_ns", "open_ms"}
    assert all(value > 0 for value in metrics["tokenizer"].values())
    assert set(metrics["machine"]) == {"processor", "threads", "load", "python", "torch", "onnxruntime"}
    assert metrics["machine"]["threads"] == 1


def test_cache_reads_each_token_once_and_recomputing_all_of_them_each_time():
    engine = ScriptedEngine([1] * 20, vocab_size=8, context=50)
    assert len(answer_ms(Case(engine, "cache", [5, 6, 7]), new_tokens=2)) == 3
    assert [len(ids) for ids in engine.read] == [3, 1, 1]
    engine.read.clear()
    assert len(answer_ms(Case(engine, "recompute", [5, 6, 7]), new_tokens=2)) == 4
    assert [len(ids) for ids in engine.read] == [3, 4, 5, 6]


def test_prompts_that_do_not_fit_are_told(capsys):
    assert fitting([512, 16, 16, 2000], 32, 1024) == [16, 512]
    assert capsys.readouterr().err == "benchmark: prompts of [2000] tokens do not fit into a context of 1024\n"
    with pytest.raises(ValueError, match=r"benchmark.prompt_tokens: no length leaves room for 32 tokens"):
        fitting([1000], 32, 1024)


def test_percentiles_of_a_hundred_and_one_values_are_values():
    assert percentiles(range(101)) == {"p50": 50.0, "p95": 95.0}


def test_seconds_is_the_median_without_the_warm_up():
    pauses = iter([0.3, 0.01, 0.3, 0.01])
    assert 0.01 <= seconds(lambda: sleep(next(pauses)), 3) < 0.2


def test_only_what_pytorch_needs_imports_torch():
    assert "torch" not in vars(sys.modules["benchmark"])
