import json

import pytest

from chatmill.app.server import json_grammar
from chatmill.app.server.api import IGNORED_TOOLS
from chatmill.app.server.security import HEADER, header_value
from chatmill.calculator import calculate
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


WEATHER, SEARCH = function("weather", "city"), {"type": "web_search"}


@pytest.mark.parametrize(
    ("known", "tools", "names"),
    [
        (["calculator"], [WEATHER, SEARCH], "tools.weather, tools.web_search"),
        (["calculator"], [function(properties=7)], "tools.calculator"),
        ([], [function()], "tools.calculator"),
    ],
)
def test_tools_that_the_model_cannot_call_are_ignored_and_named(known, tools, names, caplog):
    with scripted("A", "A", "A", "A", tools=known) as client:
        plain, *others = (
            client.post(CHAT, json={"messages": HELLO, "return_token_ids": True, **more})
            for more in ({}, {"tools": tools}, {"tools": tools, "tool_choice": "auto"})
        )
        unused = client.post(CHAT, json={"messages": HELLO, "tools": tools, "tool_choice": "none"})
    for response in others:
        assert response.headers[HEADER] == names
        assert response.json()["choices"] == plain.json()["choices"]
        assert response.json()["prompt_token_ids"] == plain.json()["prompt_token_ids"]
    assert HEADER not in unused.headers
    assert [record.message for record in caplog.records if record.name.startswith("chatmill")] == [IGNORED_TOOLS]


def test_among_tools_that_are_ignored_the_calculator_is_called():
    with scripted(answer_ids("[6*7]")[:-1], tools=["calculator"]) as client:
        response = client.post(CHAT, json={"messages": HELLO, "tools": [WEATHER, SEARCH, function("evaluate")]})
    assert response.headers[HEADER] == "tools.weather, tools.web_search"
    (call,) = response.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "evaluate", "arguments": '{"expression": "6*7"}'}


def test_the_strict_server_refuses_tools_that_the_model_cannot_call():
    for known in ([], ["calculator"]):
        with scripted("A", strict=True, tools=known) as client:
            assert refused(client, messages=HELLO, tools=[WEATHER]) == (400, "tools", "unsupported_parameter")
            assert chat(client, tools=[WEATHER], tool_choice="none")["choices"][0]["message"]["content"] == "A"


@pytest.mark.parametrize(
    ("tools", "choice", "reason"),
    [
        ([WEATHER], {"type": "function", "function": {"name": "other"}}, "there is no function 'other'"),
        ([WEATHER, SEARCH], SEARCH, "'web_search' cannot be called"),
        ([WEATHER, function()], "required", "choose one by name"),
        ([SEARCH], "required", "got 0"),
        ([], "required", "there are no `tools`"),
    ],
)
def test_a_required_call_that_is_not_possible_is_refused(tools, choice, reason):
    with scripted("A", tools=["calculator"]) as client:
        given = {"messages": HELLO, "tools": tools, "tool_choice": choice}
        assert refused(client, **given) == (400, "tool_choice", "invalid_value")
        assert reason in client.post(CHAT, json=given).json()["error"]["message"]


DEFAULTS = {  # what clients send without being told to
    "openai": {"stream_options": {"include_usage": True}, "n": 1, "user": "me", "store": False},
    "openai, of a reasoning model": {"max_completion_tokens": 9, "reasoning_effort": "low", "verbosity": "low"},
    "langchain": {"n": 1, "stream": False, "max_tokens": None, "parallel_tool_calls": False, "logit_bias": None},
    "Vercel's ai": {"response_format": {"type": "text"}, "tool_choice": "auto", "tools": [WEATHER], "top_p": 1},
    "Open WebUI": {"metadata": {"a": "b"}, "tools": [WEATHER, function("search", "query")], "logit_bias": {}},
    "others": {"service_tier": "auto", "modalities": ["text"], "seed": 5, "stop": [], "functions": []},
}


@pytest.mark.parametrize("parameters", DEFAULTS.values(), ids=DEFAULTS)
def test_what_clients_send_by_default_leaves_the_answer_as_it_is(parameters):
    with scripted("Hi", "Hi") as client:
        assert chat(client, **parameters)["choices"] == chat(client)["choices"]


@pytest.mark.parametrize("name", ["logit_bias", "functions", "guided_json"])
def test_what_would_make_the_answer_wrong_is_refused_by_its_name(name):
    with scripted("Hi") as client:
        error = client.post(CHAT, json={"messages": HELLO, name: {"5": 1}}).json()["error"]
    assert (error["message"], error["param"]) == (f"{name}: this server does not support it", name)


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
