import json

import pytest

from benchmark import main
from chatmill.benchmarking.timing import fitting_lengths
from chatmill.conversation import Message, Record, render
from chatmill.tokenizer.formats.binary import write_binary
from export_onnx import main as export
from support.tiny import VOCABULARY, write_model


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
