"""The complete pipeline on files in parts, which lie in a store outside of DVC."""

import os
import subprocess
import sys

import pytest

from chatmill.pipeline.params_file import read_params
from chatmill.pipeline.parts import PART_LIST, read_parts

pytestmark = pytest.mark.slow
CHATS = ("data/chat/train.jsonl", "data/chat/validation.jsonl", "data/chat/test.jsonl")


@pytest.fixture(scope="module")
def in_parts(project, tmp_path_factory):
    """The finished project after another run, whose files of conversations are in parts in a store."""
    folder = tmp_path_factory.mktemp("large")
    copy, store = project.copy(folder / "project"), folder / "store"
    sources = read_params(copy.folder / "params.yaml")["prepare"]
    small_parts = {f"prepare.{source}.part_bytes": 50_000 for source in sources}
    copy.edit({"mix.part_bytes": 20_000, "encode.part_tokens": 12_000} | small_parts)
    (copy.folder / ".chatmill.yaml").write_text(f"store: file://{store}\n")
    copy.repro()
    copy.store = store
    return copy


def outputs(project):
    """The checksum of each output in dvc.lock."""
    stages = read_params(project.folder / "dvc.lock")["stages"].values()
    return {out["path"]: out["md5"] for stage in stages for out in stage.get("outs", ())}


def verify(project, **settings):
    command = [sys.executable, "-m", "chatmill.app.cli", "verify"]
    environment = os.environ | {"PYTHONPATH": str(project.folder / "stages")} | settings
    return subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True, check=False)


def test_dvc_has_the_lists_of_parts_alone(in_parts):
    for path in CHATS:
        assert [file.name for file in (in_parts.folder / path).iterdir()] == [PART_LIST]
    assert len(read_parts(in_parts.folder / CHATS[0])) > 5
    assert 2 <= len(read_parts(in_parts.folder / "data/tokens/train_ids.npy")) <= 16


def test_all_that_is_made_of_the_parts_is_the_same(in_parts, project):
    expected, found = outputs(project), outputs(in_parts)
    same = ("data/tokenizer", "data/model", "data/export/onnx", "data/soft_tokenizer")
    assert {path: found[path] for path in same} == {path: expected[path] for path in same}
    assert found[CHATS[0]] != expected[CHATS[0]]


def test_nothing_runs_again(in_parts):
    assert in_parts.repro("--dry") == []


def test_verify_reads_the_store(in_parts):
    result = verify(in_parts)
    assert result.returncode == 0, result.stdout
    assert result.stderr.endswith("all in order\n")
    part = read_parts(in_parts.folder / CHATS[0])[1]
    stored = in_parts.store / part.sha256[:2] / part.sha256
    content = stored.read_bytes()
    stored.write_bytes(content[::-1])
    result = verify(in_parts)
    stored.write_bytes(content)
    assert result.returncode == 1
    assert f"{CHATS[0]}/part-00001, {part.sha256} in the store, is not the content" in result.stdout


def test_verify_names_a_store_that_cannot_be_reached_once(in_parts):
    result = verify(in_parts, CHATMILL_STORE="nowhere://store")
    assert result.returncode == 1
    assert result.stdout.startswith("the store: CHATMILL_STORE: nowhere://store: Protocol not known: nowhere: correct")


def test_verify_names_settings_that_are_none_and_blames_no_output(in_parts):
    result = verify(in_parts, CHATMILL_STORE="s3:/bucket")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.endswith(
        "CHATMILL_STORE: expected a folder, or an address as s3://bucket/prefix, got 's3:/bucket'\n"
    )
