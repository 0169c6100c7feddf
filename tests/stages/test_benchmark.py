import json
from dataclasses import replace

import pytest

from benchmark import main
from chatmill.conversation import Message, Record, render
from chatmill.tokenizer.formats.binary import write_binary
from export_onnx import main as export
from support.tiny import CONFIG, VOCABULARY, write_model


def measure(folder, config, prompt_tokens, quantize=()):
    """What the stage measures of a tiny model."""
    write_model(folder / "model", config)
    export(folder / "model", folder / "onnx", quantize=quantize)
    (folder / "exports").mkdir()
    write_binary(VOCABULARY, folder / "exports" / "tokenizer.bin")
    text = render([Message.from_text("user", "How are you?"), Message.from_text("assistant", "Fine, naïvely.")])
    (folder / "test.jsonl").write_text(Record("talk", "talk/1", text).to_json() * 3)
    files = [folder / name for name in ("test.jsonl", "exports", "model", "onnx", "benchmark.json")]
    main(*files, prompt_tokens=prompt_tokens, new_tokens=4, repeats=3, threads=1)
    return json.loads((folder / "benchmark.json").read_text())


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    return measure(tmp_path_factory.mktemp("benchmark"), CONFIG, [40, 8, 4096], ["int8"])


def test_every_engine_has_latencies_for_every_prompt_that_fits(metrics):
    for engine, modes in {"pytorch": 2, "onnx": 2, "onnx_hf": 1, "onnx_int8": 1}.items():
        measured = [metrics[engine][mode] for mode in ("cache", "recompute")[:modes]]
        assert all(list(by_prompt) == ["8", "40"] for by_prompt in measured)
        times = [
            values[key] for by_prompt in measured for values in by_prompt.values() for key in ("ttft_ms", "token_ms")
        ]
        assert all(0 < t["p50"] <= t["p95"] and t["spread"] >= 1 for t in times)
    assert "recompute" not in metrics["onnx_hf"]
    assert all(
        0 < share == metrics[name]["cache"]["40"]["reached"] for name, share in metrics["limit"]["reached"].items()
    )


def test_tokenizer_and_machine_are_described(metrics):
    assert set(metrics["tokenizer"]) == {"encode_mb_per_s", "decode_mb_per_s", "lookup_ns", "open_ms"}
    assert all(value > 0 for value in metrics["tokenizer"].values())
    assert set(metrics["machine"]) == {"processor", "threads", "load", "python", "torch", "onnxruntime"}
    assert metrics["machine"]["threads"] == 1


@pytest.mark.parametrize(
    ("context", "prompts", "message"),
    [
        pytest.param(64, ["1", "16"], "prompts of 512 tokens are left out: with", marks=pytest.mark.slow),
        pytest.param(50, ["1", "16"], "do not fit into a context of 50\n", marks=pytest.mark.slow),
        (2, [], "into a context of 2; the model is not timed: lower benchmark.prompt_tokens"),
    ],
)
def test_what_does_not_fit_the_context_is_left_out_with_a_line(context, prompts, message, tmp_path, capsys):
    metrics = measure(tmp_path, replace(CONFIG, max_position_embeddings=context), prompt_tokens=[16, 1, 512])
    assert list(metrics.get("onnx", {"cache": {}})["cache"]) == prompts
    assert message in capsys.readouterr().err
