"""/v1/responses, /v1/embeddings, ollama's endpoints and /openapi.json."""

import base64
import json

import numpy as np
import openai
import pytest
import torch

from chatmill.app.server.api_errors import HEADER
from chatmill.app.server.models import Models
from chatmill.inference.model_loading import load_model
from support.api_client import HELLO, OPTIONS, answer_ids, client_of, refused, scripted
from support.serving import serving
from support.tiny import write_model

CALCULATOR = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    write_model(folder)
    return folder


@pytest.fixture(scope="module")
def client(folder):
    models = Models(["tiny"], OPTIONS)
    models.add("tiny", load_model(folder, "cpu", 1))
    with client_of(models) as client:
        yield client


def lines(response):
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_response_says_what_a_chat_says():
    with scripted("Hi you", "Hi you") as client:
        result = client.post("/v1/responses", json={"input": "Hello", "instructions": "Be kind.", "store": True})
        chat = client.post(
            "/v1/chat/completions", json={"messages": [{"role": "system", "content": "Be kind."}, *HELLO]}
        ).json()
    assert result.headers[HEADER] == "store"
    (item,) = result.json()["output"]
    assert item["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert result.json()["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_the_events_of_a_response_end_with_the_whole_one():
    with scripted("Hi you") as client:
        text = client.post("/v1/responses", json={"input": HELLO, "stream": True}).text
    events = [json.loads(block.split("data: ", 1)[1]) for block in text.strip().split("\n\n")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "Hi you"
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hi you"


def test_a_response_calls_the_calculator_of_the_client():
    tools = [{"type": "function", "name": "evaluate", "parameters": CALCULATOR}]
    with scripted(answer_ids("[6*7]")[:-1], "42.", tools=["calculator"]) as client:
        (call,) = client.post("/v1/responses", json={"input": "6*7?", "tools": tools}).json()["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
        items = [{"role": "user", "content": [{"type": "input_text", "text": "6*7?"}]}, call, output]
        answer = client.post("/v1/responses", json={"input": items, "tools": tools}).json()
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "evaluate", '{"expression": "6*7"}')
    assert answer["output"][0]["content"][0]["text"] == "42."


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"input": [{"type": "image_generation_call"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "messages"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools"),
        ({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ],
)
def test_responses_that_cannot_be_given_are_refused(client, parameters, param):
    assert refused(client, "/v1/responses", **parameters)[:2] == (400, param)


@pytest.mark.parametrize("path", ["/v1/responses", "/api/chat"])
def test_tools_that_the_model_cannot_call_are_ignored_by_all_apis(path):
    named = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    tools = [{"type": "function", "function": named, **named}]
    given = {"model": "scripted", "input": HELLO, "messages": HELLO, "stream": False}
    with scripted("Hi", "Hi") as client:
        plain, with_tools = client.post(path, json=given), client.post(path, json=given | {"tools": tools})
    assert with_tools.headers[HEADER].split(", ")[-1] == "tools.weather"
    key = "output" if path == "/v1/responses" else "message"
    texts = [json.dumps(response.json()[key]) for response in (plain, with_tools)]
    assert all("Hi" in text for text in texts)


def test_an_embedding_is_the_mean_of_the_last_hidden_states(client, folder):
    result = client.post("/v1/embeddings", json={"input": ["Hello", "you"]}).json()
    model = load_model(folder, "cpu", 1).engine.model
    states = []
    model.model.register_forward_hook(lambda *arguments: states.append(arguments[-1][0]))
    ids = client.post("/tokenize", json={"prompt": "Hello"}).json()["tokens"]
    with torch.inference_mode():
        model(torch.tensor([[client.post("/v1/completions", json=bos()).json()["prompt_token_ids"][0], *ids]]))
    expected = states[0][0].mean(0)
    assert result["data"][0]["embedding"] == pytest.approx((expected / expected.norm()).tolist(), abs=1e-5)
    assert [entry["index"] for entry in result["data"]] == [0, 1]
    encoded = client.post("/v1/embeddings", json={"input": "Hello", "encoding_format": "base64"}).json()
    numbers = np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4")
    assert numbers.tolist() == result["data"][0]["embedding"]


def bos():
    return {"prompt": "x", "max_tokens": 1, "return_token_ids": True}


def test_embeddings_that_cannot_be_given_are_refused(client):
    path = "/v1/embeddings"
    assert refused(client, path, input=[])[:2] == (400, "input")
    assert refused(client, path, input="x", dimensions=3) == (400, "dimensions", "invalid_value")
    assert refused(client, path, input="x" * 5000) == (400, "input", "context_length_exceeded")
    with scripted() as other:
        assert refused(other, path, input="x") == (501, "model", "unsupported_model")


def test_ollamas_chat_streams_lines_and_ends_with_the_counts():
    with scripted("Hi you", "Hi you") as client:
        given = {"model": "scripted:latest", "messages": HELLO, "options": {"num_ctx": 4096, "num_predict": -1}}
        streamed = client.post("/api/chat", json=given)
        whole = client.post("/api/chat", json=given | {"stream": False}).json()
    found = lines(streamed)
    assert streamed.headers[HEADER] == "options.num_ctx"
    assert "".join(line["message"]["content"] for line in found) == whole["message"]["content"] == "Hi you"
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert found[-1]["eval_count"] == whole["eval_count"] == 7


def test_ollamas_chat_calls_with_an_object_and_continues_an_answer():
    tools = [{"type": "function", "function": {"name": "calc", "parameters": CALCULATOR}}]
    with scripted(answer_ids("[6*7]")[:-1], "42.", "rest", tools=["calculator"]) as client:
        given = {"model": "scripted", "messages": HELLO, "tools": tools, "stream": False}
        message = client.post("/api/chat", json=given).json()["message"]
        history = [*HELLO, message, {"role": "tool", "tool_name": "calc", "content": "42"}]
        answer = client.post("/api/chat", json=given | {"messages": history}).json()
        continued = [*HELLO, {"role": "assistant", "content": "The "}]
        rest = client.post("/api/chat", json=given | {"messages": continued, "tools": []}).json()
    assert message["tool_calls"] == [{"function": {"name": "calc", "arguments": {"expression": "6*7"}}}]
    assert (answer["message"]["content"], rest["message"]["content"]) == ("42.", "rest")


def test_ollama_generates_from_a_prompt_or_a_raw_text():
    with scripted("Hi", "Hi") as client:
        given = {"model": "scripted", "prompt": "A", "stream": False}
        chat = client.post("/api/generate", json=given).json()
        raw = client.post("/api/generate", json=given | {"raw": True}).json()
        empty = client.post("/api/generate", json={"model": "scripted"}).json()
    assert (chat["response"], raw["response"], empty["done_reason"]) == ("Hi", "Hi", "load")
    assert raw["prompt_eval_count"] < chat["prompt_eval_count"]


def test_ollamas_clients_find_the_models(client):
    assert all(len(model["digest"]) == 64 for model in client.get("/api/tags").json()["models"])
    assert [model["name"] for model in client.get("/api/tags").json()["models"]] == ["tiny"]
    assert client.get("/api/ps").json()["models"][0]["model"] == "tiny"
    shown = client.post("/api/show", json={"model": "tiny:latest"}).json()
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["model_info"]["chatmill.context_length"] == 640
    assert client.get("/api/version").json().keys() == {"version"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/chat", {"model": "gpt", "messages": HELLO}, 404),
        ("/api/chat", {"messages": HELLO}, 400),
        ("/api/chat", {"model": "tiny", "messages": [HELLO[0] | {"images": ["AAAA"]}]}, 400),
        ("/api/chat", {"model": "tiny", "messages": HELLO, "options": {"temperature": "hot"}}, 400),
        ("/api/chat", {"model": "tiny", "messages": HELLO, "options": []}, 400),
        ("/api/generate", {"model": "tiny", "prompt": "x", "suffix": "y"}, 400),
        ("/api/generate", {"model": "tiny", "prompt": "x", "images": ["AAAA"]}, 400),
        ("/api/show", {"model": "gpt"}, 404),
    ],
)
def test_ollamas_clients_get_errors_as_a_text(client, path, body, status):
    response = client.post(path, json=body)
    assert response.status_code == status
    assert isinstance(response.json()["error"], str)


def test_openapi_describes_every_endpoint_and_refers_to_what_is_there(client):
    described = client.get("/openapi.json").json()
    references = set(find_references(described))
    assert references <= {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    for path, operations in described["paths"].items():
        method = client.post if "post" in operations else client.get
        assert method(path.replace("{name}", "tiny")).status_code == (400 if "post" in operations else 200)


def find_references(value):
    """The `$ref`s in a JSON value."""
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from find_references(item)


def test_the_openai_client_reads_responses_and_embeddings(folder):
    with serving("--model", folder, "--threads", "1", "--max-tokens", "8") as address:
        theirs = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        whole = theirs.responses.create(model=str(folder), input="Hello")
        events = list(theirs.responses.create(model=str(folder), input="Hello", stream=True))
        choices = theirs.chat.completions.create(model=str(folder), messages=HELLO, n=2).choices
        vectors = theirs.embeddings.create(model=str(folder), input=["a", "b"]).data
    assert events[-1].response.output_text == whole.output_text
    assert len(choices) == len(vectors) == 2
    assert np.linalg.norm(vectors[0].embedding) == pytest.approx(1, abs=1e-5)


def test_the_openai_client_reads_the_stream_of_a_response_to_its_end():
    with scripted("Hi you") as client:
        theirs = openai.OpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=client)
        with theirs.responses.stream(model="scripted", input="Hello") as stream:
            assert stream.get_final_response().output_text == "Hi you"
