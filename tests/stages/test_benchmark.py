import json
import sys
from time import sleep

import pytest

from benchmark import main
from chatmill.benchmarking.timing import TURN_TOKENS, fitting_lengths, measure_streaming, median_seconds
from chatmill.conversation import Message, Record, render
from chatmill.tokenizer.formats.binary import write_binary
from export_onnx import main as export
from support.scripted import ScriptedEngine
from support.tiny import CONFIG, VOCABULARY, byte_tokenizer, write_model


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """What the stage measures of a tiny model."""
    folder = tmp_path_factory.mktemp("benchmark")
    write_model(folder / "model")
    export(folder / "model", folder / "onnx", quantize=["int8"])
    (folder / "exports").mkdir()
    write_binary(VOCABULARY, folder / "exports" / "tokenizer.bin")
    text = render([Message.from_text("user", "How are you?"), Message.from_text("assistant", "Fine, naïvely.")])
    (folder / "test.jsonl").write_text(Record("talk", "talk/1", text).to_json() * 3)
    files = [folder / name for name in ("test.jsonl", "exports", "model", "onnx", "benchmark.json")]
    main(*files, prompt_tokens=[40, 8, 4096], new_tokens=4, repeats=3, threads=1)
    return json.loads((folder / "benchmark.json").read_text())


def test_every_engine_has_latencies_for_every_prompt_that_fits(metrics):
    for engine, modes in {"pytorch": 2, "onnx": 2, "onnx_hf": 1, "onnx_int8": 1}.items():
        measured = [metrics[engine][mode] for mode in ("cache", "recompute")[:modes]]
        assert all(list(by_prompt) == ["8", "40"] for by_prompt in measured)
        times = [
            values[key] for by_prompt in measured for values in by_prompt.values() for key in ("ttft_ms", "token_ms")
        ]
        assert all(0 < t["p50"] <= t["p95"] and t["spread"] >= 1 for t in times)
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


def test_limit_is_the_time_of_the_float32_bytes_after_the_longest_prompt(metrics):
    limit = metrics["limit"]
    assert limit["bytes_per_token"] == metrics["onnx"]["cache"]["40"]["bytes_per_token"]
    expected = limit["bytes_per_token"] / limit["bandwidth_gb_per_s"] / 1e6  # of an odd number of rounds both medians
    assert limit["token_ms"] == pytest.approx(expected, rel=0.01)  # are those of one round; the numbers are rounded
    assert limit["reached"] == {
        engine: metrics[engine]["cache"]["40"]["reached"]["token"]
        for engine in ("pytorch", "onnx", "onnx_hf", "onnx_int8")
    }


def test_a_quantized_token_reads_fewer_bytes(metrics):
    num_bytes = {name: metrics[name]["cache"]["8"]["bytes_per_token"] for name in ("pytorch", "onnx", "onnx_int8")}
    assert num_bytes["pytorch"] == num_bytes["onnx"] > 2 * num_bytes["onnx_int8"]


def test_tokenizer_and_machine_are_described(metrics):
    assert set(metrics["tokenizer"]) == {"encode_mb_per_s", "decode_mb_per_s", "lookup_ns", "open_ms"}
    assert all(value > 0 for value in metrics["tokenizer"].values())
    assert set(metrics["machine"]) == {"processor", "threads", "load", "python", "torch", "onnxruntime"}
    assert metrics["machine"]["threads"] == 1


def test_prompts_that_do_not_fit_are_told(capsys):
    assert fitting_lengths([512, 16, 16, 2000], 32, 1024) == [16, 512]
    assert (
        capsys.readouterr().err
        == "benchmark: prompts of [2000] tokens are left out: they do not fit into a context of 1024\n"
    )
    with pytest.raises(ValueError, match=r"benchmark.prompt_tokens: expected one of at most"):
        fitting_lengths([1000], 32, 1024)


def test_seconds_is_the_median_without_the_warm_up():
    pauses = iter([0.3, 0.01, 0.3, 0.01])
    assert 0.01 <= median_seconds(lambda: sleep(next(pauses)), 3) < 0.2


def test_only_what_pytorch_needs_imports_torch():
    assert "torch" not in vars(sys.modules["benchmark"])
