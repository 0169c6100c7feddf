import asyncio
import json

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from chatmill.app.server import verdicts as verdicts_module
from chatmill.app.server.runs import Runs, Verdicts, routes
from chatmill.app.server.security import ApiError, handle_api_error
from chatmill.conversation import Message, Record, render
from support.run_repository import RunRepository

TALK = [Message.from_text("user", "Who are you?"), Message.from_text("assistant", "I am a mill.")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    made = RunRepository(tmp_path_factory.mktemp("verdicts"))
    made.measure(1.5)
    made.experiment("second")
    made.write("dvc.lock", "stages: {}")
    made.experiment("without")
    (made.folder / "data/chat").mkdir()
    records = [Record("talk", f"talk/{i}", render(TALK)).to_json() for i in range(25)]
    made.write("data/chat/test.jsonl", "".join(records))
    return made


@pytest.fixture
def client(repository, monkeypatch):
    monkeypatch.chdir(repository.folder)
    runs = Runs(repository.folder)
    asyncio.run(runs.listing())
    app = Starlette(routes=routes(Verdicts(runs, repository.folder)), exception_handlers={ApiError: handle_api_error})
    with TestClient(app) as client:
        client.ticket = runs.ticket
        yield client


def events(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return list(map(json.loads, lines[:-1]))


def test_each_run_is_told_when_it_is_measured_and_then_the_verdict(client):
    answer = client.post("/runs/verdict", json={"sides": [["main"], ["second", "workspace"]]})
    *measured, verdict = events(answer)
    assert [event["measured"] for event in measured] == ["main", "second", "workspace"]
    assert verdict["heads"] == ["A: main", "B: second, workspace"]
    (sentence,) = verdict["sentences"]
    assert sentence.startswith("bits: no clear difference (+0.0 %, ")
    page = client.get(f"/runs/verdicts/{verdict['number']}/report?ticket={client.ticket}")
    assert page.status_code == 200 and sentence.split(";")[0] in page.text
    assert page.headers["content-security-policy"].endswith("sandbox")


def test_pages_need_the_ticket_and_are_kept_for_a_while(client, monkeypatch):
    monkeypatch.setattr(verdicts_module, "MAX_PAGES", 1)
    numbers = [events(client.post("/runs/verdict", json={"sides": [["main"], ["main"]]}))[-1]["number"] for _ in "ab"]
    assert client.get(f"/runs/verdicts/{numbers[1]}/report").status_code == 403
    answers = [client.get(f"/runs/verdicts/{number}/report?ticket={client.ticket}") for number in numbers]
    assert [answer.status_code for answer in answers] == [404, 200]


NO_SIDES = [5, [["main"]], [["main"], []], [["main"], "main"], [["main"]] * 5, [["main"] * 12, ["main"]], None]


@pytest.mark.parametrize("body", ["{", "[]", "{}", *(json.dumps({"sides": sides}) for sides in NO_SIDES)])
def test_what_is_no_list_of_sides_is_refused(client, body):
    assert client.post("/runs/verdict", content=body).status_code == 400


@pytest.mark.parametrize("name", ["nothing", "../data/model", "without", "HEAD", 5, {}])
def test_only_runs_of_the_listing_that_have_a_model_are_compared(client, name):
    assert client.post("/runs/verdict", json={"sides": [["main"], [name]]}).status_code == 404


def test_where_there_is_no_test_set_that_is_told(client, repository):
    file = repository.folder / "data/chat/test.jsonl"
    content = file.read_text()
    file.unlink()
    try:
        answer = client.post("/runs/verdict", json={"sides": [["main"], ["second"]]})
        assert answer.status_code == 409 and "`dvc pull` or `dvc repro`" in answer.json()["error"]["message"]
        file.write_text("nonsense\n")
        (event,) = events(client.post("/runs/verdict", json={"sides": [["main"], ["second"]]}))
        assert "test.jsonl" in event["problem"]
    finally:
        file.write_text(content)


def test_where_nobody_waits_no_further_run_is_measured(repository, monkeypatch):
    monkeypatch.chdir(repository.folder)

    async def leave():
        runs = Runs(repository.folder)
        await runs.listing()
        found = Verdicts(runs, repository.folder)
        stream = found.events([["main"], ["second"]])
        first = json.loads(await anext(stream))
        await stream.aclose()
        await asyncio.to_thread(found._executor.shutdown)
        return first, found._pages

    assert asyncio.run(leave()) == ({"measured": "main"}, {})
