"""What Python's clients can do with a server; run by clients.py in the environment of the clients.

It reads {"address", "model", "embedder"} from stdin and prints one JSON object for each client and feature.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CODES = ("unsupported_parameter", "unsupported_model", "invalid_value", "unknown_parameter", "model_not_found")
QUESTION = "What is 48 times 7?"
MESSAGES = [{"role": "user", "content": QUESTION}]
EXPRESSION = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": EXPRESSION}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}}
Features = dict[str, Callable[[], object]]


def check(client: str, features: Features) -> None:
    """Run each feature, and print what came of it: a feature works where it returns something true."""
    for feature, run in features.items():
        try:
            result, message = "works" if run() else "FAILS", ""
        except Exception as error:  # any error is a result
            message = " ".join(str(error).split())
            told = any(words in message for words in (*CODES, "tools: ", "response_format: "))
            result = "refused" if told else "FAILS"
            message = f"{type(error).__name__}: {message}"[:300]
        print(json.dumps({"client": client, "feature": feature, "result": result, "message": message}), flush=True)


def is_place(text: str) -> bool:
    """Whether a text is JSON of the schema."""
    return isinstance(json.loads(text)["city"], str)


def openai_features(address: str, model: str, embedder: str) -> Features:
    """openai's."""
    import openai

    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    create: Any = client.chat.completions.create

    def unknown() -> bool:
        raw = client.chat.completions.with_raw_response
        response: Any = raw.create(model=model, messages=MESSAGES, user="me", extra_body={"beam_width": 2})
        return response.headers["x-ignored-parameters"] == "user, beam_width"

    def call(tool: Any, **more: Any) -> bool:
        choice = create(model=model, messages=MESSAGES, tools=[tool], **more).choices[0]
        if choice.finish_reason != "tool_calls":
            return False
        (made,) = choice.message.tool_calls
        results = {"role": "tool", "tool_call_id": made.id, "content": "336"}
        if more:
            return bool(json.loads(made.function.arguments))
        answer = create(model=model, messages=[*MESSAGES, choice.message, results], tools=[tool])
        return "336" in answer.choices[0].message.content

    def usage() -> Any:
        chunks = list(create(model=model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}))
        return chunks[-1].usage

    def responses() -> bool:
        whole = client.responses.create(model=model, input=QUESTION)
        events = list(client.responses.create(model=model, input=QUESTION, stream=True))
        return bool(whole.output_text) and events[-1].response.output_text == whole.output_text  # type: ignore[union-attr]

    return {
        "models": lambda: client.models.list().data,
        "chat": lambda: create(model=model, messages=MESSAGES).choices[0].message.content,
        "stream": usage,
        "unknown parameter": unknown,
        "n": lambda: len(create(model=model, messages=MESSAGES, n=3, temperature=1, seed=1).choices) == 3,
        "prompts": lambda: len(client.completions.create(model=model, prompt=["A", "B"], max_tokens=4).choices) == 2,
        "calculator": lambda: call(CALCULATOR),
        "other tool": lambda: create(model=model, messages=MESSAGES, tools=[WEATHER]).choices[0].message.content,
        "chosen tool": lambda: call(WEATHER, tool_choice={"type": "function", "function": {"name": "weather"}}),
        "JSON schema": lambda: is_place(
            create(model=model, messages=MESSAGES, response_format=SCHEMA).choices[0].message.content
        ),
        "responses": responses,
        "embeddings": lambda: len(client.embeddings.create(model=embedder, input=["a", "b"]).data) == 2,
    }


def langchain_features(address: str, model: str, embedder: str) -> Features:
    """langchain-openai's."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    options: dict[str, Any] = {"base_url": f"{address}/v1", "api_key": "none", "max_retries": 0}
    chat = ChatOpenAI(model=model, **options)

    def calculate() -> bool:
        bound = chat.bind_tools([CALCULATOR])
        history: list[Any] = [HumanMessage(QUESTION)]
        history.append(bound.invoke(history))
        history.append(ToolMessage("336", tool_call_id=history[-1].tool_calls[0]["id"]))
        return "336" in str(bound.invoke(history).content)

    def structured(**more: Any) -> Any:
        schema = {"title": "place", "description": "a place", **CITY}
        return chat.with_structured_output(schema, **more).invoke(QUESTION)

    return {
        "chat": lambda: chat.invoke(QUESTION).content,
        "stream": lambda: "".join(str(chunk.content) for chunk in chat.stream(QUESTION)),
        "calculator": calculate,
        "other tool": lambda: chat.bind_tools([WEATHER]).invoke(QUESTION).content,
        "chosen tool": lambda: structured(method="function_calling")["city"] is not None,
        "JSON schema": lambda: structured()["city"] is not None,
        "responses": lambda: ChatOpenAI(model=model, use_responses_api=True, **options).invoke(QUESTION).content,
        "embeddings": lambda: OpenAIEmbeddings(
            model=embedder, check_embedding_ctx_length=False, **options
        ).embed_documents(["a", "b"]),
    }


def litellm_features(address: str, model: str, embedder: str) -> Features:
    """litellm's."""
    import litellm

    litellm.suppress_debug_info = True
    options: dict[str, Any] = {"api_base": f"{address}/v1", "api_key": "none", "messages": MESSAGES, "max_retries": 0}

    def ask(**more: Any) -> Any:
        return litellm.completion(model=f"openai/{model}", **options, **more)

    return {
        "chat": lambda: ask().choices[0].message.content,
        "stream": lambda: "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)),
        "n": lambda: len(ask(n=2).choices) == 2,
        "calculator": lambda: ask(tools=[CALCULATOR]).choices[0].message.tool_calls,
        "other tool": lambda: ask(tools=[WEATHER]).choices[0].message.content,
        "JSON schema": lambda: is_place(ask(response_format=SCHEMA).choices[0].message.content),
        "embeddings": lambda: (
            litellm.embedding(model=f"openai/{embedder}", input=["a"], api_base=f"{address}/v1", api_key="none").data
        ),
    }


def llm_features(address: str, model: str, _: str) -> Features:
    """llm's, with the model in its extra-openai-models.yaml."""
    folder = Path(os.environ["LLM_USER_PATH"])
    folder.mkdir(exist_ok=True)
    entry = {"model_id": "ours", "model_name": model, "api_base": f"{address}/v1", "api_key_name": "ours"}
    entry |= {"supports_schema": True, "supports_tools": True}  # type: ignore[dict-item]
    (folder / "extra-openai-models.yaml").write_text(json.dumps([entry]), encoding="utf-8")
    import llm

    ours = llm.get_model("ours")

    def calculator(expression: str) -> str:
        return "336" if expression else ""

    def weather(city: str) -> str:
        return city

    def ask(**more: Any) -> str:
        return str(ours.prompt(QUESTION, key="none", **more).text())

    return {
        "chat": lambda: ask(stream=False),
        "stream": lambda: "".join(ours.prompt(QUESTION, key="none", stream=True)),
        "calculator": lambda: "336" in ours.chain(QUESTION, key="none", tools=[calculator]).text(),
        "other tool": lambda: ours.chain(QUESTION, key="none", tools=[weather]).text(),
        "JSON schema": lambda: is_place(ask(schema=CITY, stream=False)),
    }


def ollama_features(address: str, model: str, embedder: str) -> Features:
    """ollama's."""
    import ollama

    client = ollama.Client(host=address)

    def chat(**more: Any) -> Any:
        return client.chat(model=model, messages=MESSAGES, **more)

    def calculate() -> bool:
        message = chat(tools=[CALCULATOR]).message
        history = [*MESSAGES, message, {"role": "tool", "tool_name": "calculator", "content": "336"}]
        return "336" in client.chat(model=model, messages=history, tools=[CALCULATOR]).message.content

    def models() -> bool:
        client.show(model)
        return bool(client.list().models and client.ps().models)

    return {
        "models": models,
        "chat": lambda: chat(options={"num_predict": 40}).message.content,
        "stream": lambda: "".join(part.message.content for part in chat(stream=True)),
        "unknown parameter": lambda: chat(options={"num_ctx": 4096}).message.content,
        "prompts": lambda: client.generate(model=model, prompt=QUESTION).response,
        "calculator": calculate,
        "other tool": lambda: chat(tools=[WEATHER]).message.content,
        "JSON schema": lambda: is_place(chat(format=CITY).message.content),
        "embeddings": lambda: len(client.embed(model=embedder, input=["a", "b"]).embeddings) == 2,
    }


def open_webui_features(address: str, model: str, _: str) -> Features:
    """The requests of Open WebUI when it connects to OpenAI's and to ollama's API, and when it chats."""
    import httpx

    client = httpx.Client(base_url=address, timeout=60)

    def get(*paths: str) -> bool:
        return all(client.get(path).raise_for_status().json() for path in paths)

    def lines(path: str, **more: Any) -> list[str]:
        body = {"model": model, "messages": MESSAGES, "stream": True, **more}
        with client.stream("POST", path, json=body) as response:
            response.raise_for_status()
            return [line for line in response.iter_lines() if line]

    openai_body = {"stream_options": {"include_usage": True}, "metadata": {"chat_id": "x"}, "user": {"id": "x"}}
    return {
        "models": lambda: get("/api/version", "/api/tags", "/api/ps", "/v1/models"),
        "chat": lambda: json.loads(lines("/api/chat", keep_alive="5m", options={"num_ctx": 2048})[-1])["done"],
        "stream": lambda: lines("/v1/chat/completions", **openai_body)[-1] == "data: [DONE]",
        "other tool": lambda: lines("/v1/chat/completions", tools=[WEATHER], **openai_body)[-1] == "data: [DONE]",
    }


def validate(address: str) -> Features:
    """The validators of two formats."""
    import httpx
    from openapi_spec_validator import validate as validate_openapi
    from prometheus_client.parser import text_string_to_metric_families

    def openapi() -> bool:
        validate_openapi(httpx.get(f"{address}/openapi.json").json())
        return True

    def metrics() -> bool:
        return len(list(text_string_to_metric_families(httpx.get(f"{address}/metrics").text))) > 5

    return {"/openapi.json": openapi, "/metrics": metrics}


def main() -> None:
    """Run all clients."""
    given = json.load(sys.stdin)
    names = (given["address"], given["model"], given["embedder"])
    check("openai", openai_features(*names))
    check("langchain", langchain_features(*names))
    check("litellm", litellm_features(*names))
    check("llm", llm_features(*names))
    check("ollama", ollama_features(*names))
    check("Open WebUI", open_webui_features(*names))
    check("validators", validate(names[0]))


if __name__ == "__main__":
    main()
