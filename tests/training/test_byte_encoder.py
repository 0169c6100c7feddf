import pytest
import torch

from chatmill.model.chat_model import initialise
from chatmill.soft_tokenizer.byte_embedding import (
    ByteEncoder,
    ByteEncoderShape,
    spell_tokens,
    use_byte_embedding,
    use_embedding_table,
)
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from chatmill.tokenizer.vocabulary.vocabulary import Kind
from chatmill.training.model_folder import read_byte_encoder, write_model
from support.tiny import CONFIG, VOCABULARY, random_model

SHAPE = ByteEncoderShape(width=32, layers=1, longest=8, slots=512)
NORMAL, CONTINUATION, FALLBACK = Kind.NORMAL, Kind.CONTINUATION, Kind.FALLBACK


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    encoder = ByteEncoder(SHAPE, CONFIG.hidden_size)
    for weight in encoder.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return encoder.requires_grad_(False)


def embed(encoder, *tokens, kind=NORMAL):
    return encoder(spell_tokens(tokens, [kind] * len(tokens), SHAPE.longest))


def test_a_table_in_the_place_of_the_network_changes_no_logit(encoder):
    model, ids = random_model(), torch.tensor([[72, 105, 256, 3]])
    use_byte_embedding(model, encoder, VOCABULARY)
    expected = model(ids)
    assert use_embedding_table(model) is encoder and isinstance(model.model.embed_tokens, torch.nn.Embedding)
    torch.testing.assert_close(model(ids), expected)
    assert use_embedding_table(model) is None


def test_a_new_network_begins_as_a_table_does_and_every_weight_learns():
    model, ids = random_model(), torch.tensor([[72, 105, 256, 3]])
    use_byte_embedding(model, ByteEncoder(SHAPE, CONFIG.hidden_size), VOCABULARY)
    initialise(model, 1)
    assert 0.01 < model.model.embed_tokens.weight.std() < 0.06
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # layers start as the identity
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.normal_(generator=generator)
    model.nats(ids, None, None, ids.roll(-1, 1))[0].sum().backward()
    assert all(weight.grad.abs().max() > 0 for weight in model.model.embed_tokens.parameters())


def test_a_folder_keeps_the_network_and_the_table_it_made(encoder, tmp_path):
    write_folder(VOCABULARY, tmp_path / "tokenizer")
    model = random_model()
    use_byte_embedding(model, encoder, VOCABULARY)
    use_embedding_table(model)
    write_model(tmp_path / "model", model, tmp_path / "tokenizer", VOCABULARY, {"template": "chatml"}, encoder)
    again = read_byte_encoder(tmp_path / "model")
    assert again.shape == SHAPE and torch.equal(embed(again, b"ab"), embed(encoder, b"ab"))


def test_a_model_without_such_a_network_has_none(tmp_path):
    assert read_byte_encoder(tmp_path) is None


def test_a_damaged_network_is_refused(encoder, tmp_path):
    write_folder(VOCABULARY, tmp_path / "tokenizer")
    write_model(tmp_path / "model", random_model(), tmp_path / "tokenizer", VOCABULARY, {"template": "chatml"}, encoder)
    (tmp_path / "model/byte_encoder.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"byte_encoder\.safetensors: not the byte encoder that config\.json"):
        read_byte_encoder(tmp_path / "model")
