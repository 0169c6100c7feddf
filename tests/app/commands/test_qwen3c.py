"""Model files of qwen3.c: the same model, and the same answers by an engine in C."""

import random
from dataclasses import replace

import pytest
import torch

from chatmill.app.cli import main
from chatmill.app.commands.qwen3c import write_model_file
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


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rope_theta": 5e5}, "no wider head has the frequencies of 500000"),
        ({"rope_theta": 1e7}, "no wider head has the frequencies of 1e+07"),
        ({"rope_theta": 1.0}, "no wider head has the frequencies of 1"),
        ({"rms_norm_eps": 1e-5}, "the epsilon of its norms is 1e-06, and not 1e-05"),
        ({"variant": Variant(qk_norm=False)}, "it normalises queries and keys as Qwen3 does"),
        ({"variant": Variant(qkv_bias=True)}, "has no biases"),
        ({"variant": Variant(rope_scaling=RopeScaling(factor=2.0))}, "scales no frequencies"),
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
