"""Model files of qwen3.c: the same model, and the same answers by an engine in C."""

import json
import math
import random
import shutil
from dataclasses import replace

import pytest
import torch

from chatmill.app.cli import main
from chatmill.app.commands.qwen3c import export_qwen3c, write_model_file
from chatmill.checkpoints.configuration import RopeScaling, Variant
from chatmill.tokenizer.formats.binary import read_binary
from support.q8_engine import answers_in_c, build_engine, greedy_ids
from support.qwen3c_weights import dequantized_model
from support.tiny import CONFIG, VOCABULARY, byte_tokenizer, random_model, write_model

LARGE = replace(CONFIG, rope_theta=1e6)
UNTIED = replace(CONFIG, tie_word_embeddings=False)


def logits(model, ids):
    with torch.inference_mode():
        return model(ids)


def write(folder, config):
    """The model, and the file of it."""
    model, file = random_model(config), folder / "model.bin"
    write_model_file(file, config, model.state_dict(), config.vocab_size)
    return model, file


@pytest.mark.parametrize(
    "config", [CONFIG, LARGE, UNTIED, replace(CONFIG, rope_theta=1e3)], ids=["1e4", "1e6", "untied", "1e3"]
)
def test_the_dequantized_model_is_the_model(config, tmp_path):
    """With weights that int8 expresses exactly, nothing but rounding differs: wider heads change no logit."""
    model, file = random_model(config), tmp_path / "model.bin"
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_((weight * 16).round().clamp(-126, 126))
                weight[:, ::8] = 127.0
                weight.div_(127)
    write_model_file(file, config, model.state_dict(), config.vocab_size)
    ids = torch.randint(0, config.vocab_size, (2, 300), generator=torch.Generator().manual_seed(1))
    expected, found = logits(model, ids), logits(dequantized_model(file), ids)
    assert (expected - found).abs().max() < 1e-5 * expected.abs().max()


def test_quantizing_loses_half_a_step_at_most(tmp_path):
    model, file = write(tmp_path, LARGE)
    found = dequantized_model(file).state_dict()
    for name, weight in model.state_dict().items():
        groups = weight.reshape(-1, 32) if weight.ndim > 1 else weight
        step = groups.abs().amax(-1, keepdim=True) / 127 if weight.ndim > 1 else torch.zeros(1)
        assert ((groups - found[name].reshape(groups.shape)).abs() <= step * 0.501).all(), name


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    return build_engine(tmp_path_factory.mktemp("q8")) or pytest.skip("no C compiler")


@pytest.mark.parametrize("config", [CONFIG, UNTIED], ids=["tied", "untied"])
def test_twenty_greedy_answers_in_c_are_those_of_pytorch(config, engine, tmp_path):
    write_model(tmp_path / "model", config)
    assert main(["qwen3c", str(tmp_path / "model"), str(tmp_path / "out")]) == 0
    file, tokenizer, pick = tmp_path / "out/model.bin", byte_tokenizer(), random.Random(1)
    prompts = [[pick.randrange(config.vocab_size) for _ in range(pick.randint(1, 60))] for _ in range(20)]
    model, stop = dequantized_model(file), {tokenizer.special["<|bos|>"], tokenizer.special["<|im_end|>"]}
    expected = [greedy_ids(model, prompt, 30, stop) for prompt in prompts]
    found = answers_in_c(engine, file, prompts, 30)
    assert [ids for ids, _ in found] == expected
    assert [text for _, text in found] == [b"".join(tokenizer.token_bytes[i] for i in ids) for ids in expected]
    assert len({tuple(ids) for ids in expected}) > 10


def test_the_engine_finds_its_tokenizer_and_prompts(tmp_path, capsys):
    write_model(tmp_path / "model")
    for out in ("out", "again"):
        assert main(["qwen3c", str(tmp_path / "model"), str(tmp_path / out)]) == 0
    files = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()}
    user, generation = b"<|im_start|>user\n%s<|im_end|>\n", b"<|im_start|>assistant\n"
    assert files["model.bin.template"] == b"<|bos|>" + user + generation
    system = b"<|bos|><|im_start|>system\n%s<|im_end|>\n" + user + generation
    assert files["model.bin.template.with-system"] == files["model.bin.template.with-system-and-thinking"] == system
    assert files["model.bin.template.with-thinking"] == files["model.bin.template"]
    assert read_binary(tmp_path / "out/model.bin.tokenizer") == VOCABULARY
    assert capsys.readouterr().out.count("model.bin: ") == 2


def test_rows_without_a_token_are_left_out(tmp_path):
    config = replace(CONFIG, vocab_size=CONFIG.vocab_size + 64)
    write_model(tmp_path / "model", config)
    assert main(["qwen3c", str(tmp_path / "model"), str(tmp_path / "out")]) == 0
    assert dequantized_model(tmp_path / "out/model.bin").config.vocab_size == CONFIG.vocab_size


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rope_theta": 5e5}, "no wider head has the frequencies of 500000"),
        ({"rope_theta": 1e7}, "no wider head has the frequencies of 1e+07"),
        ({"rope_theta": 1.0}, "no wider head has the frequencies of 1"),
        ({"rms_norm_eps": 1e-5}, "the epsilon of its norms is 1e-06, and not 1e-05"),
        ({"variant": Variant(qk_norm=False)}, "it normalises queries and keys"),
        ({"variant": Variant(qkv_bias=True)}, "it has no biases"),
        ({"variant": Variant(rope_scaling=RopeScaling(factor=2.0))}, "its rotary frequencies are not scaled"),
        ({"hidden_size": 128, "head_dim": 16}, "its buffers have 96 channels of all heads, and the model 128"),
        ({"intermediate_size": 60}, "groups of 8 weights or more"),
    ],
)
def test_a_shape_that_the_file_cannot_express_is_refused(changed, reason, tmp_path):
    config = replace(CONFIG, **changed)
    with pytest.raises(ValueError, match="cannot express the model") as raised:
        write_model_file(tmp_path / "model.bin", config, {}, config.vocab_size)
    assert reason in str(raised.value) and "`chatmill chat` runs it" in str(raised.value)
    assert not (tmp_path / "model.bin").exists()


def test_a_refused_model_leaves_no_folder(tmp_path, capsys):
    write_model(tmp_path / "model", replace(CONFIG, rope_theta=5e5))
    assert main(["qwen3c", str(tmp_path / "model"), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_nothing_is_written_of_a_refused_model(tmp_path):
    write_model(tmp_path / "model", replace(CONFIG, rope_theta=5e5))
    with pytest.raises(ValueError, match="no wider head"):
        export_qwen3c(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_window_that_is_shorter_is_the_context(tmp_path):
    _, file = write(tmp_path, replace(CONFIG, variant=Variant(sliding_window=100)))
    assert dequantized_model(file).config.max_position_embeddings == 100


def test_an_unknown_template_is_refused(tmp_path, capsys):
    write_model(tmp_path / "model")
    shutil.rmtree(tmp_path / "model/additional_chat_templates", ignore_errors=True)
    content = json.loads((tmp_path / "model/config.json").read_text())
    del content["chatmill"]["template"]
    (tmp_path / "model/config.json").write_text(json.dumps(content))
    (tmp_path / "model/chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "model/manifest.json").unlink()
    assert main(["qwen3c", str(tmp_path / "model"), str(tmp_path / "out")]) == 1
    assert "its chat template is not known" in capsys.readouterr().err


def test_the_wider_head_of_base_1e4_is_half_as_wide_again(tmp_path):
    _, file = write(tmp_path, CONFIG)
    assert CONFIG.rope_theta == 1e4 and dequantized_model(file).config.head_dim == 24
    assert math.isclose(1e6 ** (-2 * 5 / 24), 1e4 ** (-2 * 5 / 16))
