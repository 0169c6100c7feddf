import json

import pytest

from chatmill.app.server import json_grammar
from chatmill.app.server.ignored_parameters import HEADER, header_value
from chatmill.tools.calculator import calculate
from support.api_client import (
    HELLO,
    TOKENIZER,
    answer_ids,
    chat,
    content,
    refused,
    scripted,
    stream,
)

CHAT = "/v1/chat/completions"


def function(name="calculator", parameter="expression", **more):
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "parameters": schema | more}}


def test_unknown_parameters_are_ignored_and_named_in_a_header():
    with scripted("Hi", "Hi", "Hi") as client:
        given = {"messages": HELLO, "user": "me", "temprature": 1, "x": None, "stream_options": {"y": 1}}
        whole = client.post(CHAT, json=given)
        streamed = client.post(CHAT, json=given | {"stream": True})
        plain = client.post(CHAT, json={"messages": HELLO})
    names = "user, temprature, stream_options.y"
    assert (whole.headers[HEADER], streamed.headers[HEADER]) == (names, names)
    assert whole.json()["choices"] == plain.json()["choices"]
    assert HEADER not in plain.headers


def test_the_strict_server_refuses_them_but_not_those_that_change_nothing():
    with scripted("Hi", strict=True) as client:
        assert refused(client, messages=HELLO, temprature=1) == (400, "temprature", "unknown_parameter")
        assert client.post(CHAT, json={"messages": HELLO, "user": "me"}).headers[HEADER] == "user"


def test_the_header_is_short_and_has_no_other_characters():
    assert header_value(["a\r\nSet-Cookie: b", "é"]) == "a??Set-Cookie??b, ?"
    assert header_value(["x" * 5000]) == "x" * 40
    many = header_value([f"name{i}" for i in range(90_000)])
    assert many.startswith("name0, name1, ")
    assert many.endswith("name19 and 89980 more")


def test_several_answers_have_seeds_one_after_another():
    replies = ["A", "B", "C"]
    with scripted(*replies, parallel=1) as client:
        result = chat(client, n=3)
    assert [choice["message"]["content"] for choice in result["choices"]] == replies
    assert [choice["index"] for choice in result["choices"]] == [0, 1, 2]
    assert result["usage"]["completion_tokens"] == 6
    with scripted("A") as client:
        assert chat(client)["usage"]["prompt_tokens"] == result["usage"]["prompt_tokens"]


def test_several_answers_stream_as_choices():
    with scripted("One", "Two", parallel=1) as client:
        chunks = stream(client, messages=HELLO, n=2, stream_options={"include_usage": True})
    of_choice = [[c for c in chunks[:-1] if c["choices"][0]["index"] == i] for i in range(2)]
    assert [content(chunks) for chunks in of_choice] == ["One", "Two"]
    assert [chunks[-1]["choices"][0]["finish_reason"] for chunks in of_choice] == ["stop", "stop"]
    assert chunks[-1]["usage"]["completion_tokens"] == 8


def test_several_texts_and_several_lists_of_ids_are_continued():
    for prompts in (["ab", "c"], [[65, 66], [67]]):
        with scripted("A", "B", parallel=1) as client:
            result = client.post("/v1/completions", json={"prompt": prompts, "best_of": 1}).json()
        assert [choice["text"] for choice in result["choices"]] == ["A", "B"]
        assert result["usage"]["prompt_tokens"] == (3 if prompts[0] == [65, 66] else 5)


def test_answers_beyond_the_queue_are_refused_all_at_once():
    with scripted("A") as client:
        assert refused(client, "/v1/completions", prompt=["a"] * 9) == (400, "prompt", "invalid_value")
        assert refused(client, "/v1/completions", prompt=["a"] * 10_000) == (400, "prompt", "invalid_value")
        assert refused(client, "/v1/completions", prompt="a", n=2, best_of=3) == (400, "best_of", "invalid_value")
        assert client.engine.received_ids == []


def test_after_a_last_message_of_the_assistant_comes_another_one():
    with scripted("B") as client:
        result = chat(client, [*HELLO, {"role": "assistant", "content": "A"}], return_token_ids=True)
    assert result["choices"][0]["message"]["content"] == "B"
    text = "".join(bytes(TOKENIZER.token_bytes[i]).decode() for i in result["prompt_token_ids"])
    assert text.endswith("assistant\nA<|im_end|>\n<|im_start|>assistant\n")


def test_a_function_like_the_calculator_is_called_by_its_own_name():
    tools = [function("evaluate", "formula")]
    calling = answer_ids("So [6*7]")[:-1]
    with scripted(calling, calling, "42.", tools=["calculator"]) as client:
        choice = chat(client, tools=tools)["choices"][0]
        chunks = stream(client, messages=HELLO, tools=tools)
        message = choice["message"]
        history = [*HELLO, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}]
        answer = chat(client, history, tools=tools, return_token_ids=True)
    (call,) = message["tool_calls"]
    assert (choice["finish_reason"], message["content"], call["type"]) == ("tool_calls", "So ", "function")
    assert call["function"]["name"] == "evaluate"
    assert json.loads(call["function"]["arguments"]) == {"formula": "6*7"}
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [delta["function"] for delta in deltas] == [call["function"]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    text = "".join(bytes(TOKENIZER.token_bytes[i]).decode() for i in answer["prompt_token_ids"])
    assert text.endswith("So <|python_start|>6*7<|python_end|><|output_start|>42<|output_end|>")
    assert answer["choices"][0]["message"]["content"] == "42."


def test_without_tools_of_the_client_the_server_calculates():
    with scripted("[6*7]42.", tools=["calculator"]) as client:
        message = chat(client)["choices"][0]["message"]
    assert message["parts"][1] == {"kind": "output", "text": calculate("6*7")}


@pytest.mark.parametrize(
    "tools",
    [[function("weather", "city")], [function(), function("weather", "city")], [function(properties=7)]],
)
def test_tools_that_the_model_cannot_call_are_refused(tools):
    with scripted("A", tools=["calculator"]) as client:
        assert refused(client, messages=HELLO, tools=tools) == (400, "tools", "unsupported_parameter")
        assert chat(client, tools=tools, tool_choice="none")["choices"][0]["message"]["content"] == "A"


def test_a_model_without_tools_refuses_them():
    with scripted("A") as client:
        assert refused(client, messages=HELLO, tools=[function()]) == (400, "tools", "unsupported_parameter")


def test_an_answer_has_the_format_of_a_schema_or_names_what_is_missing(monkeypatch):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    script = [ord(c) for c in "Sure!" * 10]
    with scripted(script) as client:
        answer = chat(client, response_format=wanted, max_tokens=16)["choices"][0]["message"]["content"]
        monkeypatch.setattr(json_grammar, "llguidance", None)  # as without the extra
        response = client.post(CHAT, json={"messages": HELLO, "response_format": wanted})
    assert json.loads(answer)["a"] in (1, 2)
    assert response.json()["error"]["code"] == "unsupported_parameter"
    assert "chatmill[grammar]" in response.json()["error"]["message"]


def test_schemas_that_cannot_be_met_are_refused():
    with scripted("A") as client:
        for schema in ({"type": "robot"}, {"$ref": "#/nowhere"}, {"x": "y" * 70_000}, nested(50)):
            wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            assert refused(client, messages=HELLO, response_format=wanted) == (400, "response_format", "invalid_value")


def test_a_function_that_is_chosen_is_called_with_arguments_of_its_schema():
    tools, choice = [function("weather", "city")], {"type": "function", "function": {"name": "weather"}}
    with scripted([ord("x")] * 50, [ord("x")] * 50) as client:
        whole = chat(client, tools=tools, tool_choice=choice, max_tokens=30)["choices"][0]
        chunks = stream(client, messages=HELLO, tools=tools, tool_choice="required", max_tokens=30)
    assert whole["message"]["tool_calls"][0]["function"]["name"] == "weather"
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    streamed = "".join(delta["function"]["arguments"] for delta in deltas)
    assert streamed == whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert streamed.startswith('{"city":"x')


def nested(depth):
    return {"anyOf": [nested(depth - 1)]} if depth else {"type": "robot"}


def test_metrics_count_requests_and_tokens_by_model():
    with scripted("Hi") as client:
        chat(client)
        client.get("/nothing")
        lines = client.get("/metrics").text.splitlines()
    assert 'chatmill_requests_total{route="/v1/chat/completions",status="200"} 1' in lines
    assert 'chatmill_requests_total{route="other",status="404"} 1' in lines
    assert 'chatmill_completion_tokens_total{model="scripted"} 3' in lines
    assert 'chatmill_waiting_answers{model="scripted"} 0' in lines
    assert 'chatmill_first_token_seconds_count{model="scripted"} 1' in lines
