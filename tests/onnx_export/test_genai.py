import json

import numpy as np
import onnxruntime
import pytest
import torch

from chatmill.conversation import IM_END, Message
from chatmill.inference.chat_template import CHATML
from chatmill.inference.model_loading import load_engine
from chatmill.onnx_export import graphs
from chatmill.onnx_export.graphs import GRAPH_FILE
from chatmill.pipeline.manifest import write_manifest
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from chatmill.training.model_folder import write_model as write_new
from export_onnx import main
from support.tiny import CONFIG, VOCABULARY, byte_tokenizer, random_model, write_model

PROMPTS = [np.random.default_rng(i).integers(0, VOCABULARY.num_text, 1 + 7 * i).tolist() for i in range(20)]
NEW_TOKENS = 24


@pytest.fixture(scope="module", params=[graphs.LARGE, 0])
def folder(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("genai")
    with pytest.MonkeyPatch.context() as context:
        context.setattr(graphs, "LARGE", request.param)
        main(write_model(folder / "model"), folder / "onnx", quantize=[])
    return folder / "onnx"


def answer(engine, prompt):
    """The ids of greedy decoding after a prompt."""
    ids = list(prompt)
    engine.rewind(0)
    for _ in range(NEW_TOKENS):
        ids.append(int(engine.append(ids[engine.length :]).argmax()))
    return ids


def answer_of_genai(folder, prompts):
    """The answer of ONNX Runtime GenAI to each prompt, with the folder's own settings."""
    library = pytest.importorskip("onnxruntime_genai", reason="pip install onnxruntime-genai to run the folder with it")
    model = library.Model(str(folder))
    for prompt in prompts:
        settings = library.GeneratorParams(model)
        settings.set_search_options(max_length=len(prompt) + NEW_TOKENS)
        generator = library.Generator(model, settings)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        yield generator.get_sequence(0).tolist()


def test_genai_answers_as_our_engine_does(folder):
    engine = load_engine(folder, "onnx", threads=1)
    assert list(answer_of_genai(folder, PROMPTS)) == [answer(engine, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("place", [0, 1])
def test_genai_stops_where_the_text_or_a_call_ends(folder, tmp_path, place):
    expected = answer(load_engine(folder, "onnx", threads=1), PROMPTS[3])
    last = expected[len(PROMPTS[3]) + 5]
    model = write_model(tmp_path / "model")
    file = model / "generation_config.json"
    ends = [VOCABULARY.special[IM_END]] * place + [last]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": ends}))
    write_manifest(model, kind="model", fingerprint=VOCABULARY.fingerprint)
    main(model, tmp_path / "onnx", quantize=[])
    [found] = answer_of_genai(tmp_path / "onnx", PROMPTS[3:4])
    assert found == expected[: expected.index(last, len(PROMPTS[3]))]


def test_genai_reads_a_conversation_as_a_chat_does(tmp_path):
    library = pytest.importorskip("onnxruntime_genai", reason="pip install onnxruntime-genai to run the folder with it")
    write_folder(VOCABULARY, tmp_path / "tokenizer")
    write_new(tmp_path / "model", random_model(), tmp_path / "tokenizer", VOCABULARY, {"template": "chatml"})
    main(tmp_path / "model", tmp_path / "onnx", quantize=[])
    tokenizer = library.Tokenizer(str(tmp_path / "onnx"))
    for words in ("Hi", "<|im_end|> <\\| é😀 ", ""):
        prompt = CHATML.prompt([Message.from_text("user", words)])
        text = tokenizer.apply_chat_template(json.dumps([{"role": "user", "content": words}]))
        assert tokenizer.encode(text).tolist() == byte_tokenizer().encode_segments(prompt)[0]


def test_graph_gives_the_logits_of_the_last_position(folder):
    session = onnxruntime.InferenceSession(folder / GRAPH_FILE)
    ids = np.array([PROMPTS[2]])
    past = {
        node.name: np.zeros((1, node.shape[1], CONFIG.max_position_embeddings, node.shape[3]), np.float32)
        for node in session.get_inputs()
        if "past" in node.name
    }
    [logits] = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **past})
    with torch.inference_mode():
        expected = random_model()(torch.from_numpy(ids)).numpy()[:, -1:]
    np.testing.assert_allclose(logits, expected, atol=1e-4)
