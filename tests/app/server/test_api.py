import json
import signal
import socket
from contextlib import closing

import numpy as np
import openai
import pytest

from chatmill.app.server.models import Models
from chatmill.calculator import calculate
from chatmill.conversation import IM_END, Message
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model
from export_onnx import main as export
from support.api_client import (
    HELLO,
    OPTIONS,
    SPECIAL,
    TOKENIZER,
    answer_ids,
    chat,
    client_of,
    content,
    events,
    refused,
    scripted,
    stream,
)
from support.serving import process, serving
from support.tiny import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model, exported."""
    folder = tmp_path_factory.mktemp("served")
    export(write_model(folder / "model"), folder / "onnx", quantize=[])
    return folder / "onnx"


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(folder, "cpu", 1)


@pytest.fixture(scope="module")
def client(loaded):
    models = Models(["tiny"], OPTIONS)
    models.add("tiny", loaded)
    with client_of(models) as client:
        yield client


def test_an_answer_is_that_of_a_chat_in_the_terminal(client, loaded):
    conversation = [*HELLO, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And?"}]
    session = ChatSession(*loaded, max_tokens=16)
    session.set_conversation([Message.from_text("user", "Hello"), Message.from_text("assistant", "Hi")])
    result = chat(client, conversation)
    assert result["choices"][0]["message"]["content"] == "".join(session.ask("And?"))
    assert result["usage"]["completion_tokens"] == session.answer_stats.tokens


def test_a_stream_says_what_a_whole_answer_says(client):
    chunks = stream(client, messages=HELLO, return_token_ids=True, stream_options={"include_usage": True})
    whole = chat(client, return_token_ids=True)
    assert content(chunks) == whole["choices"][0]["message"]["content"]
    assert [i for c in chunks[:-2] for i in c["choices"][0]["token_ids"]] == whole["choices"][0]["token_ids"]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["usage"] | {"prompt_tokens_details": None} == whole["usage"] | {"prompt_tokens_details": None}


def test_the_objects_have_the_names_and_keys_of_openais(client):
    whole, chunk = chat(client), stream(client, messages=HELLO)[0]
    assert (whole["object"], chunk["object"]) == ("chat.completion", "chat.completion.chunk")
    assert {"id", "object", "created", "model", "choices", "usage"} <= whole.keys()
    assert whole["choices"][0].keys() == {"index", "message", "logprobs", "finish_reason"}
    text = client.post("/v1/completions", json={"prompt": "A"}).json()
    assert text["object"] == "text_completion"
    assert text["choices"][0].keys() == {"index", "text", "logprobs", "finish_reason"}


def test_calls_of_the_tool_and_their_outputs_stand_in_their_places():
    parts = [("text", "So "), ("call", "6*7"), ("output", calculate("6*7")), ("text", "42.")]
    expected = [{"kind": kind, "text": text} for kind, text in parts]
    with scripted("So [6*7]42.", "So [6*7]42.") as client:
        message = chat(client)["choices"][0]["message"]
        chunks = stream(client, messages=HELLO)
    assert (message["content"], message["parts"]) == ("So 42.", expected)
    parts = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("parts", ())]
    assert [part for part in parts if part["kind"] != "text"] == expected[1:3]
    assert content(chunks) == "So 42."


def test_outputs_belong_to_the_calls_whose_ids_they_name(client):
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in "ab"]
    asked = [*HELLO, {"role": "assistant", "content": None, "tool_calls": calls}]

    def prompt(names):
        outputs = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in names]
        return client.post("/tokenize", json={"messages": [*asked, *outputs]})

    assert prompt("ba").json()["tokens"] == prompt("ab").json()["tokens"]
    assert "expected one of 'b', each once" in prompt("ac").json()["error"]["message"]


def test_an_answer_ends_at_its_stop_its_limit_or_by_itself():
    with scripted(answer_ids("One. T")[:-1], answer_ids("One")[:-1], "One. Two.") as client:
        ends = [chat(client, stop=[". T"]), chat(client, max_tokens=3), chat(client)]
    assert [end["choices"][0]["message"]["content"] for end in ends] == ["One", "One", "One. Two."]
    assert [end["choices"][0]["finish_reason"] for end in ends] == ["stop", "length", "stop"]


def test_a_seed_gives_the_same_answer_and_others_give_others(client):
    texts = [chat(client, temperature=2.0, seed=seed)["choices"][0]["message"]["content"] for seed in (1, 1, 2, -3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
    assert len({chat(client, temperature=2.0)["choices"][0]["message"]["content"] for _ in range(3)}) > 1


def test_probabilities_are_the_softmax_of_the_logits(client, loaded):
    result = chat(client, logprobs=True, top_logprobs=3, return_token_ids=True)
    ids, tokens = result["choices"][0]["token_ids"], result["choices"][0]["logprobs"]["content"]
    logits = loaded.engine.sequence_logits(result["prompt_token_ids"] + ids)[len(result["prompt_token_ids"]) - 1 : -1]
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    assert [token["id"] for token in tokens] == [i for i in ids if TOKENIZER.is_text[i]]
    for token, row in zip(tokens, expected, strict=False):
        assert token["logprob"] == pytest.approx(row[token["id"]], abs=1e-3)
        assert [one["id"] for one in token["top_logprobs"]] == np.argsort(-row, kind="stable")[:3].tolist()
    assert (
        bytes(b for token in tokens for b in token["bytes"]).decode("utf-8", "replace")
        == result["choices"][0]["message"]["content"]
    )


def test_a_text_is_continued_as_its_ids_are(client):
    body = {"prompt": "Ab", "logprobs": 1, "max_tokens": 3}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    chunks = stream(client, "/v1/completions", **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    ids = client.post("/tokenize", json={"prompt": "Ab"}).json()["tokens"]
    bare = client.post("/v1/completions", json={"prompt": [SPECIAL["<|bos|>"], *ids], "max_tokens": 3}).json()
    assert choice["text"] == bare["choices"][0]["text"]


def test_tokens_and_their_probabilities(client, loaded):
    ids = [SPECIAL["<|bos|>"], 72, 105, SPECIAL[IM_END]]
    tokens = client.post("/tokens", json={"ids": ids}).json()["tokens"]
    assert [token["text"] for token in tokens] == ["", "H", "i", ""]
    assert [token["control"] for token in tokens] == ["<|bos|>", None, None, IM_END]
    assert (tokens[0]["logprob"], tokens[0]["top"]) == (None, [])
    logits = loaded.engine.sequence_logits(ids)[1].astype(np.float64)
    assert tokens[2]["logprob"] == pytest.approx(logits[105] - np.log(np.exp(logits).sum()), abs=1e-4)
    assert [top["id"] for top in tokens[2]["top"]] == np.argsort(-logits)[:5].tolist()


@pytest.mark.parametrize("text", ["", "Hello", "é🙂 <|im_start|>", "\x00\u2028"])
def test_tokenize_is_the_inverse_of_decoding(client, text):
    result = client.post("/tokenize", json={"prompt": text}).json()
    assert result["count"] == len(result["tokens"]) == len(text.encode())
    assert TOKENIZER.decode(result["tokens"]) == text


def test_an_answer_that_was_cut_goes_on_where_it_ended():
    with scripted("Hello you.", answer_ids("Hello you.")[5:]) as client:
        start = chat(client, max_tokens=5, return_token_ids=True)
        text = start["choices"][0]["message"]["content"]
        history = [*HELLO, {"role": "assistant", "content": text}]
        rest = chat(client, history, continue_final_message=True, return_token_ids=True)
    assert text == "Hello"
    assert rest["prompt_token_ids"] == start["prompt_token_ids"] + start["choices"][0]["token_ids"]


def test_a_conversation_that_is_too_long_is_refused_or_loses_its_oldest_turns(client):
    turn = [{"role": "user", "content": "x" * 200}, {"role": "assistant", "content": "y" * 100}]
    long = [*turn, *turn, *HELLO]
    assert refused(client, messages=long) == (400, "messages", "context_length_exceeded")
    message = client.post("/v1/chat/completions", json={"messages": long}).json()["error"]["message"]
    assert message.endswith("shorten the text, or set truncation: auto, which leaves out the oldest turns")
    assert (
        chat(client, [*long, {"role": "assistant", "content": "Hi"}], truncation="auto")["timings"]["dropped_messages"]
        == 2
    )
    result = chat(client, long, truncation="auto", return_token_ids=True)
    assert (result["timings"]["dropped_messages"], result["timings"]["lost"]) == (2, "")
    assert result["prompt_token_ids"] == client.post("/tokenize", json={"messages": [*turn, *HELLO]}).json()["tokens"]
    alone = [{"role": "user", "content": "x" * 700}]
    assert refused(client, messages=alone, truncation="auto") == (400, "messages", "context_length_exceeded")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"model": "gpt-5"}, (404, "model", "model_not_found")),
        ({"temperature": -1}, (400, "temperature", "invalid_value")),
        ({"temperature": "hot"}, (400, "temperature", "invalid_value")),
        ({"top_p": 0}, (400, "top_p", "invalid_value")),
        ({"max_tokens": -2}, (400, "max_tokens", "invalid_value")),
        ({"max_tokens": 1.5}, (400, "max_tokens", "invalid_value")),
        ({"max_tokens": True}, (400, "max_tokens", "invalid_value")),
        ({"stop": ["x" * 300]}, (400, "stop", "invalid_value")),
        ({"n": 0}, (400, "n", "invalid_value")),
        ({"n": 2}, (400, "n", "invalid_value")),
        ({"n": 10**30}, (400, "n", "invalid_value")),
        ({"logit_bias": {"5": 1}}, (400, "logit_bias", "unsupported_parameter")),
        ({"response_format": {"type": "xml"}}, (400, "response_format", "invalid_value")),
        ({"guided_regex": "a+"}, (400, "guided_regex", "unsupported_parameter")),
        ({"functions": [{"name": "f"}]}, (400, "functions", "unsupported_parameter")),
        ({"stream_options": 1}, (400, "stream_options", "invalid_value")),
        ({"messages": []}, (400, "messages", "invalid_value")),
        ({"messages": [{"role": "robot", "content": "x"}]}, (400, "messages", "invalid_value")),
        ({"messages": [{"role": "user", "content": None}]}, (400, "messages", "invalid_value")),
        ({"messages": [{"content": "x"}]}, (400, "messages", "invalid_value")),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, (400, "messages", "invalid_value")),
        ({"messages": [*HELLO, {"role": "system", "content": "x"}]}, (400, "messages", "invalid_value")),
        ({"continue_final_message": True}, (400, "messages", "invalid_value")),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_parameter(client, parameters, expected):
    assert refused(client, **{"messages": HELLO} | parameters) == expected


SPOKEN = [*HELLO, {"role": "assistant", "content": ""}, *HELLO]


@pytest.mark.parametrize(
    ("parameters", "meant"),
    [
        ({"max_tokens": -1}, {"max_tokens": 640}),
        ({"max_tokens": 9, "max_completion_tokens": 0}, {"max_tokens": 640}),
        ({"max_tokens": 9.0, "seed": 1.0, "n": 1.0}, {"max_tokens": 9, "seed": 1}),
        ({"temperature": 1, "seed": 5, "top_k": -1}, {"temperature": 1, "seed": 5, "top_k": 0}),
        ({"stop": ""}, {}),
        ({"stop": ["", "\0\0\0"]}, {}),
        ({"messages": [*HELLO, {"role": "assistant", "content": None}, *HELLO]}, {"messages": SPOKEN}),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": []}, *HELLO]}, {"messages": SPOKEN}),
    ],
)
def test_what_clients_mean_is_done(client, parameters, meant):
    assert chat(client, **parameters)["choices"] == chat(client, **meant)["choices"]


def test_what_changes_nothing_of_an_answer_is_ignored(client):
    harmless = {"user": "me", "metadata": {}, "store": False, "n": 1, "tools": [], "response_format": {"type": "text"}}
    assert chat(client, **harmless)["choices"] == chat(client)["choices"]


def test_a_model_that_fails_is_told_before_the_stream_begins_and_within_it():
    for before in (0, 2):
        with scripted([65] * 50) as client:
            client.engine.append = failing(client.engine.append, before)
            response = client.post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
            error = response.json()["error"] if before == 0 else events(response.text)[-1]["error"]
            assert response.status_code == (500 if before == 0 else 200)
            assert error["code"] == "model_failed"
            assert "largest logit is nan" in error["message"]


def failing(append, before):
    """An engine's `append` whose logits are NaN after `before` calls."""
    calls = iter(range(1000))
    return lambda ids: append(ids) * (np.nan if next(calls) >= before else 1)


def test_models_are_listed_with_what_a_page_needs(client):
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"], model["tools"]) == ("tiny", 640, ["calculator"])
    assert model["defaults"]["max_tokens"] == 16
    assert client.get("/v1/models/tiny").json() == model
    assert client.get("/v1/models/other").status_code == 404


def test_the_openai_client_chats_streams_lists_and_gets_its_errors(folder):
    with serving("--model", folder, "--threads", "1", "--max-tokens", "8") as address:
        theirs = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        name = theirs.models.list().data[0].id
        whole = theirs.chat.completions.create(model=name, messages=HELLO, logprobs=True, top_logprobs=2)
        chunks = list(
            theirs.chat.completions.create(
                model=name, messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
        )
        text = theirs.completions.create(model=name, prompt="A", max_tokens=4)
        with pytest.raises(openai.NotFoundError, match="there is no model 'x'"):
            theirs.chat.completions.create(model="x", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as error:
            theirs.chat.completions.create(model=name, messages=HELLO, temperature=-1)
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == whole.choices[0].message.content
    )
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 8
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    assert text.usage.completion_tokens <= 4
    assert error.value.param == "temperature"


@pytest.mark.slow
def test_who_goes_away_stops_the_generation_and_the_server_ends_cleanly(folder):
    """The slot is free again: more clients disconnect than there are slots and places in the queue."""
    request = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 500}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(request)
    with process("--model", folder, "--threads", "1", "--parallel", "1", "--queue", "0") as (address, server):
        port = int(address.rsplit(":", 1)[1])
        theirs = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=5)
        for _ in range(3):
            with closing(socket.create_connection(("127.0.0.1", port))) as connection:
                connection.sendall(head + request)
                assert connection.recv(15) == b"HTTP/1.1 200 OK"
            assert theirs.chat.completions.create(model=str(folder), messages=HELLO, max_tokens=2)
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == -signal.SIGTERM
