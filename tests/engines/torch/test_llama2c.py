import struct

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chatmill.checkpoints.configuration import ModelConfig, Variant
from chatmill.engines.torch.opening import open_torch_engine
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.llama2c import read_llama2c
from chatmill.tokenizer.formats.tokenizer_loading import make_lossless
from support.paths import SHARED
from support.tiny import random_model

STORIES = SHARED / "models/stories260K"
SHAPE = {
    "vocab_size": 80,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
ATTENTION = [f"self_attn.{name}_proj" for name in "qkvo"]
FEED_FORWARD = [f"mlp.{name}_proj" for name in ("gate", "down", "up")]
IDS = np.random.default_rng(0).integers(0, 80, 30).tolist()


def random_llama(tied):
    return random_model(ModelConfig(**SHAPE, tie_word_embeddings=tied, variant=Variant(qk_norm=False)))


def header(tied):
    """dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len."""
    return [32, 48, 2, 4, 2, 80 if tied else -80, 64]


def weights_of(model, kinds):
    """The weights in llama2.c's order: channels i and i + D/2 of queries and keys side by side."""
    state = model.state_dict()
    for kind in kinds:
        for name in [
            name for name in state if name.endswith(f"{kind}.weight") and ("layers" in name or "." not in kind)
        ]:
            weight = state[name]
            if kind in ATTENTION[:2]:
                weight = torch.stack([weight.view(-1, 2, 4, 32)[:, half] for half in (0, 1)], 2).reshape(weight.shape)
            yield weight.numpy()


def write_earlier(model, tied, file):
    head = [] if tied else ["lm_head"]
    first = weights_of(model, ["embed_tokens", "input_layernorm", *ATTENTION])
    rest = weights_of(model, ["post_attention_layernorm", *FEED_FORWARD])
    rotations = [model.model.norm.weight.detach().numpy(), np.full(2 * 64 * 4, 7, np.float32)]
    parts = [*first, *rest, *rotations, *weights_of(model, head)]
    file.write_bytes(struct.pack("<7i", *header(tied)) + b"".join(part.astype("<f4").tobytes() for part in parts))


def later_header(version, tied, group=0):
    return struct.pack("<Ii7iBi", 0x616B3432, version, *map(abs, header(tied)), tied, group).ljust(256, b"\0")


def later_parts(model, tied):
    norms = [
        *weights_of(model, ["input_layernorm", "post_attention_layernorm"]),
        model.model.norm.weight.detach().numpy(),
    ]
    matrices = ["embed_tokens", *ATTENTION, *FEED_FORWARD, *([] if tied else ["lm_head"])]
    return norms, list(weights_of(model, matrices))


def write_later(model, tied, file):
    norms, matrices = later_parts(model, tied)
    file.write_bytes(later_header(1, tied) + b"".join(part.astype("<f4").tobytes() for part in [*norms, *matrices]))


def write_quantized(model, tied, file, group=16):
    """Write the model, and set its weights to the quantized ones of the file."""
    norms, matrices = later_parts(model, tied)
    data = later_header(2, tied, group) + b"".join(norm.astype("<f4").tobytes() for norm in norms)
    for matrix in matrices:
        groups = matrix.reshape(-1, group)
        scales = np.abs(groups).max(1) / 127
        data += np.round(groups / scales[:, None]).astype(np.int8).tobytes() + scales.astype("<f4").tobytes()
    file.write_bytes(data)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                groups = weight.view(-1, group)
                scales = groups.abs().amax(1, keepdim=True) / 127
                weight.copy_(((groups / scales).round() * scales).view_as(weight))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("write", [write_earlier, write_later, write_quantized])
def test_a_model_in_each_header_is_our_model(tmp_path, write, tied):
    model, file = random_llama(tied), tmp_path / "model.bin"
    write(model, tied, file)
    engine = open_torch_engine(file, device="cpu", threads=1)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS]))[0]
    assert (engine.name, engine.context, engine.vocab_size, engine.template) == ("pytorch", 64, 80, "")
    np.testing.assert_allclose(engine.sequence_logits(IDS), expected, atol=2e-4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], r"by its header expected [\d,]+ bytes, got"),
        (lambda data: data + b"\0", r"by its header expected [\d,]+ bytes, got"),
        (lambda data: data[:100], "expected 256 bytes or more, got"),
        (lambda data: struct.pack("<7i", *[1 << 30] * 3, 8, 8, 1 << 30, 9) + data[28:], "by its header"),
        (lambda data: struct.pack("<7i", 0, *header(True)[1:]) + data[28:], "invalid shape 0, 48"),
        (lambda data: struct.pack("<7i", 33, *header(True)[1:]) + data[28:], "invalid shape 33, 48"),
        (lambda data: later_header(9, True) + data, "version 9: expected 1 or 2"),
        (lambda data: later_header(2, True, 7) + data, "groups of 7 do not divide its matrices"),
        (lambda data: b"", "expected 256 bytes or more, got"),
    ],
)
def test_a_file_that_is_not_as_its_header_says_is_refused(tmp_path, damage, message):
    file = tmp_path / "model.bin"
    write_earlier(random_llama(True), True, file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=rf"model\.bin: not a checkpoint of PyTorch .*, nor of llama2\.c: .*{message}"):
        open_torch_engine(file, device="cpu", threads=1)


def records(*entries):
    """A tokenizer file: tokens 0 to 258 as llama2.c writes them, then these."""
    names = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [(0.0, name) for name in names] + list(entries)
    data = b"".join(struct.pack("<fI", score, len(name.encode())) + name.encode() for score, name in tokens)
    return struct.pack("<I", 7) + data


JOINED = [(-1.0, " a"), (-2.0, "ab"), (-3.0, "aba"), (-4.0, " ab"), (-5.0, "é"), (-6.0, "éa"), (-7.0, "  ")]
ENTRIES = JOINED + [(-100.0 - place, text) for place, text in enumerate(" ab")]


def encode_as_llama2c(text, entries):
    """The C program's `encode`, without <s>: code points or their bytes, and always the best joint token."""
    ids, scores = {name: 259 + place for place, (_, name) in enumerate(entries)}, [score for score, _ in entries]
    names = {index: name for name, index in ids.items()}
    tokens = [ids[" "]] if text else []
    for character in text:
        tokens += [ids[character]] if character in ids else [byte + 3 for byte in character.encode()]
    while True:
        best, place = -1e10, -1
        for i in range(len(tokens) - 1):
            joint = ids.get(names.get(tokens[i], "?") + names.get(tokens[i + 1], "?"))
            if joint is not None and scores[joint - 259] > best:
                best, place, merged = scores[joint - 259], i, joint
        if place < 0:
            return tokens
        tokens[place : place + 2] = [merged]


def encode(file, vocab_size, text):
    """Our ids of the text with the space that llama2.c puts before it."""
    tokenizer = ChatTokenizer(make_lossless(read_llama2c(file, vocab_size)))
    return tokenizer.encode(" " + text) if text else []


@settings(max_examples=300)
@given(text=st.text(st.sampled_from(" abé€\n\0<sx>\u2581"), max_size=20))
@example(text="")
@example(text="aba  ab")
def test_ids_are_those_of_the_c_program(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "tok.bin"
    file.write_bytes(records(*ENTRIES))
    assert encode(file, 259 + len(ENTRIES), text) == encode_as_llama2c(text, ENTRIES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (records(*ENTRIES)[:-1], "its token 268 is truncated"),
        (records(*ENTRIES[:-1]), "it has only 268"),
        (records(*ENTRIES, (0.0, "b ")), "it has more"),
        (records(*ENTRIES).replace(b"<0x41>", b"<0x42>"), "its tokens 3 to 258 are not the bytes"),
        (records(*ENTRIES).replace(b"\n<s>\n", b"\n<q>\n"), "its token 1: expected <s>, got "),
        (records(*ENTRIES[:-1], (float("nan"), "b")), "its token 268, 'b', has the score nan"),
        (records((-9.0, "ab"), *ENTRIES[1:]), "tokens 259 and 260 are the same"),
        (records((-2.0, " a"), *ENTRIES[1:]), "its token 260, 'ab', has the score -2.0: not finite, or another"),
        (records(*ENTRIES).replace(b"\xc3\xa9", b"\xff\xff"), "can't decode byte"),
        (b"", "it has only 0"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, data, message):
    file = tmp_path / "tok.bin"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=rf"tok\.bin: not a tokenizer of llama2\.c for 269 tokens: .*({message})"):
        read_llama2c(file, 269)


@pytest.mark.skipif(not STORIES.exists(), reason="the model is not here")
def test_a_model_made_elsewhere_tells_its_story_word_for_word():
    engine = open_torch_engine(STORIES / "stories260K.bin", device="cpu", threads=1)
    vocabulary = read_llama2c(STORIES / "tok512.bin", engine.vocab_size)
    story = (STORIES / "stories260K.md").read_text().split("-t 0.0\n")[1].split("\n```")[0]
    ids, text = [1], b""
    while len(text) <= len(story):
        ids = [int(engine.append(ids).argmax())]
        text += vocabulary.tokens[ids[0]]
    assert text.decode().strip()[: len(story)] == story


@pytest.mark.skipif(not STORIES.exists(), reason="the model is not here")
@settings(max_examples=200)
@given(text=st.text(st.sampled_from(" abcdeghilmnorstTuy.,'\"!\n") | st.characters(codec="utf-8"), max_size=60))
@example(text="Once upon a time, there was a little girl named Lily.")
def test_ids_of_a_real_tokenizer_are_those_of_the_c_program(text):
    file = STORIES / "tok512.bin"
    data, entries, place = file.read_bytes(), [], 4
    while place < len(data):
        score, length = struct.unpack_from("<fI", data, place)
        entries.append((score, data[place + 8 : place + 8 + length].decode()))
        place += 8 + length
    assert encode(file, 512, text) == encode_as_llama2c(text, entries[259:])
