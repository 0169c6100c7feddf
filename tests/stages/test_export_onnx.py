import json

import numpy as np
import onnxruntime
import pytest
import torch

from chatmill.inference.model_loading import load_model
from chatmill.pipeline.manifest import check_manifest
from chatmill.soft_tokenizer.byte_embedding import ByteEncoder, ByteEncoderShape
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from chatmill.training.model_folder import write_model as write_new
from export_onnx import main
from support.tiny import CONFIG, VOCABULARY, random_model, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("export") / "model")


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized") / "onnx"
    main(model, folder, quantize=["int8", "int8_dynamic", "int4"])
    return folder


def test_folder_holds_graphs_and_all_that_chatting_needs(model, tmp_path):
    main(model, tmp_path / "onnx", quantize=["int8", "int8_dynamic", "int4"])
    kinds = ("", "_int4", "_int8", "_int8_dynamic")
    graphs = ["model.onnx", "model_genai.onnx", *(f"model_shared{kind}.onnx" for kind in kinds)]
    graphs += ["model_int8.onnx", "model_q4.onnx", "model_quantized.onnx"]
    others = ["chatmill_tokenizer.json", "config.json", "generation_config.json", "manifest.json", "tokenizer.json"]
    others += ["genai_config.json"]
    assert sorted(file.name for file in (tmp_path / "onnx").iterdir()) == sorted(graphs + others)
    assert check_manifest(tmp_path / "onnx") == VOCABULARY.fingerprint
    manifest = json.loads((tmp_path / "onnx" / "manifest.json").read_text())
    assert manifest["kind"] == "onnx"
    assert {*manifest["files"], "manifest.json"} == {*graphs, *others}


def test_two_exports_are_equal_byte_for_byte(model, tmp_path):
    for name in ("a", "b"):
        main(model, tmp_path / name, quantize=["int8"])
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert [(tmp_path / "a" / name).read_bytes() for name in files] == [
        (tmp_path / "b" / name).read_bytes() for name in files
    ]


def test_an_export_chats_whose_embeddings_were_made_from_bytes(tmp_path):
    write_folder(VOCABULARY, tmp_path / "tokenizer")
    model, encoder = random_model(), ByteEncoder(ByteEncoderShape(layers=0, slots=64), CONFIG.hidden_size)
    write_new(tmp_path / "model", model, tmp_path / "tokenizer", VOCABULARY, {"template": "chatml"}, encoder)
    main(tmp_path / "model", tmp_path / "onnx", quantize=[])
    engine = load_model(tmp_path / "onnx", device="cpu", threads=1).engine
    assert engine.name == "onnx"
    np.testing.assert_allclose(engine.append([72, 105]), model(torch.tensor([[72, 105]])).detach()[0, -1], atol=1e-3)


def test_a_damaged_model_is_refused(model, tmp_path):
    copy = write_model(tmp_path / "model")
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        main(copy, tmp_path / "onnx", quantize=[])


def sizes_for_transformers_js(shape, batch_size):
    """The sizes of an empty past, as transformers.js computes them: numbers, `batch_size`, and 0 for other names."""
    return [dim if isinstance(dim, int) else batch_size if dim == "batch_size" else 0 for dim in shape]


@pytest.mark.parametrize("name", ["model.onnx", "model_quantized.onnx", "model_int8.onnx", "model_q4.onnx"])
def test_transformers_js_begins_with_an_empty_past_of_the_right_size(exported, name):
    session = onnxruntime.InferenceSession(exported / name)
    given = {node.name: node.shape for node in session.get_inputs()}
    past = {key: sizes_for_transformers_js(shape, 3) for key, shape in given.items() if key.startswith("past")}
    assert set(map(tuple, past.values())) == {(3, CONFIG.num_key_value_heads, 0, CONFIG.head_dim)}
    ones = np.ones((3, 4), np.int64)
    feed = {"input_ids": ones, "attention_mask": ones, "position_ids": ones.cumsum(1) - 1}
    logits, *_ = session.run(None, feed | {key: np.zeros(sizes, np.float32) for key, sizes in past.items()})
    assert logits.shape == (3, 4, len(VOCABULARY.tokens))


def test_portable_graph_runs_where_nothing_is_known_of_chatmill(model, tmp_path):
    """The code of the model cards of exported decoders: names from the graph, an empty past."""
    main(model, tmp_path / "onnx", quantize=[])
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    past = {
        node.name: np.zeros((2, node.shape[1], 0, node.shape[3]), np.float32)
        for node in session.get_inputs()
        if "past" in node.name
    }
    ones = np.ones((2, 3), np.int64)
    logits, *_ = session.run(
        None, {"input_ids": ones, "attention_mask": ones, "position_ids": ones.cumsum(1) - 1, **past}
    )
    assert logits.shape == (2, 3, len(VOCABULARY.tokens))
