"""A client of a server in this process, and servers whose model generates given replies."""

import asyncio
import json
import re
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from starlette.testclient import TestClient

from chatmill.app.server import scheduler
from chatmill.app.server.app import create_app
from chatmill.app.server.models import Models, ServingOptions
from chatmill.app.server.runs import Runs
from chatmill.conversation import CALL_END, CALL_START, IM_END, escape
from chatmill.inference.chat_template import CHATML
from chatmill.inference.model_loading import LoadedModel
from chatmill.inference.sampler import Sampling
from support.scripted import ScriptedEngine
from support.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
SPECIAL = TOKENIZER.special
OPTIONS = ServingOptions({}, 4, 4, Sampling(), 16, 60)
HELLO = [{"role": "user", "content": "Hello"}]


def answer_ids(text):
    """The ids of a text as a model generates it; `[` and `]` enclose a call."""
    calls = {ord("["): SPECIAL[CALL_START], ord("]"): SPECIAL[CALL_END]}
    return [*(calls.get(byte, byte) for byte in escape(text).encode()), SPECIAL[IM_END]]


@contextmanager
def client_of(models, **options):
    app = create_app(models, Runs(Path("/nowhere")), ["127.0.0.1"], [], None)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False, **options) as client:
        yield client
    asyncio.run(models.drain(0))


@contextmanager
def scripted(*replies, context=1000, tools=(), **options):
    """A client of a server whose model generates these replies, each a text or ids."""
    script = [token for text in replies for token in (answer_ids(text) if isinstance(text, str) else text)]
    engine = ScriptedEngine(script, vocab_size=TOKENIZER.vocab_size, context=context)
    models = Models(["scripted"], OPTIONS._replace(**options))
    with patch.object(scheduler, "MIN_CHUNK", scheduler.MAX_CHUNK):  # each prompt takes one id of the script
        models.add("scripted", LoadedModel(engine, TOKENIZER, CHATML, frozenset(), tools))
    with client_of(models) as client:
        client.engine = engine
        yield client


def chat(client, messages=HELLO, **parameters):
    response = client.post("/v1/chat/completions", json={"messages": messages, **parameters})
    assert response.status_code == 200, response.text
    return response.json()


def events(text):
    """The objects of server-sent events; the last event must be [DONE]."""
    *data, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line and not line.startswith(":")]
    assert done == "[DONE]"
    return [json.loads(event) for event in data]


def stream(client, path="/v1/chat/completions", **parameters):
    response = client.post(path, json={"stream": True, **parameters})
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


def content(chunks):
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


def refused(client, path="/v1/chat/completions", **parameters):
    """Status, parameter and code of an error."""
    response = client.post(path, json=parameters)
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert not re.search("Input should|should have|Field required|column", error["message"]), "in our own words"
    return response.status_code, error["param"], error["code"]
