"""What a run says of itself, read from git and DVC's cache."""

import asyncio
import json
import re

import pytest

from chatmill.app import cli
from chatmill.app.introduction import Introduction
from chatmill.app.server.models import Models
from chatmill.app.server.runs import Runs
from chatmill.conversation import Message, Record, render
from support.api_client import OPTIONS
from support.run_repository import RunRepository

CARD = '---\nwidget:\n- text: "Where is it?"\n---\n# Mill\n'
TEST_SET = "data/chat/test.jsonl"


def question(text, **skill):
    talk = render([Message.from_text("user", text), Message.from_text("assistant", "x")])
    return Record("a", text, talk, skill or None).to_json()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Experiments with a test set of people, with a generated one, with a card, and with neither on this machine."""
    made = RunRepository(tmp_path_factory.mktemp("runs"))
    made.store(TEST_SET, question("Who?"))
    made.experiment("talk")
    made.store(TEST_SET, question("Who?") + question("1?", name="sums"))
    made.experiment("sums")
    made.write("data/README.md", CARD)
    made.git("add", "-f", "data/README.md")
    made.experiment("card")
    made.store(TEST_SET, question("How?")).unlink()
    made.experiment("gone")
    return made


def introduction(repository, name, *, generated_only=False):
    return asyncio.run(Runs(repository.folder).introduction(name, generated_only=generated_only))


@pytest.mark.parametrize(("name", "prompts"), [("talk", ["Who?"]), ("sums", ["1?"]), ("card", ["Where is it?"])])
def test_a_run_has_the_prompts_of_its_own_card_or_test_set(repository, name, prompts):
    assert introduction(repository, name) == Introduction(prompts=tuple(prompts))


@pytest.mark.parametrize("name", ["gone", "main", "workspace", "nothing"])
def test_a_run_whose_data_are_not_on_this_machine_has_none(repository, name):
    assert introduction(repository, name) == Introduction()


def test_what_people_wrote_is_left_out_on_demand(repository):
    assert introduction(repository, "talk", generated_only=True).prompts == ()
    assert introduction(repository, "sums", generated_only=True).prompts == ("1?",)


@pytest.mark.parametrize(("shows_data", "prompts"), [(True, ["Who?"]), (False, [])])
def test_the_models_api_has_them(repository, monkeypatch, shows_data, prompts):
    monkeypatch.chdir(repository.folder)
    models = Models(["data/model", "talk"], OPTIONS._replace(shows_data=shows_data), Runs(repository.folder))

    async def entries():
        return {name: await models.entry(name) for name in ("talk", "sums", "data/model")}

    found = asyncio.run(entries())
    assert [found[name]["prompts"] for name in found] == [prompts, ["1?"], []]
    assert found["sums"]["title"] is None


def page_prompts(name, out):
    assert cli.main(["page", "--model", name, "-o", str(out)]) == 0
    content = re.search(r'id="content">(.*?)</script>', out.read_text(), re.DOTALL)
    return json.loads(content[1])["prompts"]


def test_a_page_of_a_run_has_its_generated_prompts_by_name_and_by_commit(repository, monkeypatch, tmp_path):
    monkeypatch.chdir(repository.folder)
    commit = repository.git("for-each-ref", "--format=%(objectname)", "refs/exps/*/*/sums")
    expected = {"talk": [], "sums": ["1?"], commit: ["1?"], "card": ["Where is it?"], "workspace": []}
    assert {name: page_prompts(name, tmp_path / "chat.html") for name in expected} == expected
