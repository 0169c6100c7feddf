import os
import shutil
import socket
import subprocess
import sys
import time
import uuid

import fsspec
import pytest

from chatmill.training import remote_states
from chatmill.training.checkpoint import Checkpoint
from chatmill.training.remote_states import check_remote
from chatmill.training.trainer import Trainer
from support.paths import SOURCE
from support.s3 import s3_server
from support.training_runs import run_training, training_command, write_tokens

CHECKPOINTS = "CHATMILL_CHECKPOINTS"
RESULTS = ("model/model.safetensors", "model/config.json", "train.tsv")


@pytest.fixture(scope="module")
def s3():
    """The address of a server of S3, one for all tests, since fsspec keeps its connection."""
    with s3_server() as address:
        yield address


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def storage(request, tmp_path, monkeypatch):
    """The file system of the storage, and the path there."""
    if request.param == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3"))
        return use(monkeypatch, f"s3://bucket/{uuid.uuid4()}/deep")
    if request.param == "memory":
        return use(monkeypatch, f"memory://{uuid.uuid4()}/deep")
    (tmp_path / "storage").mkdir()
    return use(monkeypatch, f"file://{tmp_path}/storage")


def use(monkeypatch, address):
    monkeypatch.setenv(CHECKPOINTS, address)
    return fsspec.core.url_to_fs(address)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The states of a run as a machine sees that has an empty disk, and what it logs."""

    def start(name="run"):
        monkeypatch.setenv("DVC_ROOT", str(tmp_path / str(uuid.uuid4())))
        messages = []
        checkpoint = Checkpoint(name, messages.append)
        checkpoint.messages = messages
        return checkpoint

    return start


def names(storage, run="run"):
    files, prefix = storage
    files.invalidate_cache()
    return sorted(path.rsplit("/", 1)[-1] for path in files.find(f"{prefix}/{run}"))


def numbers(storage, run="run"):
    return [f"{name.split('-')[0]}.{name.split('.')[1]}" for name in names(storage, run)]


def test_a_machine_with_an_empty_disk_goes_on_where_another_one_died(storage, machine):
    first, second = machine(), machine()
    assert first.load() is None
    for number in range(3):
        assert first.save({"done": number})
    assert numbers(storage) == ["2.complete", "2.safetensors", "3.complete", "3.safetensors"]
    assert second.load() == {"done": 2} and second.save({"done": 3})
    assert first.load() == {"done": 3}
    assert first.messages == second.messages == []


def test_a_disk_that_is_ahead_of_the_storage_is_read(storage, machine):
    checkpoint = machine()
    for number in range(3):
        checkpoint.save({"done": number})
    files, prefix = storage
    for name in names(storage)[2:]:
        files.rm_file(f"{prefix}/run/{name}")
    assert checkpoint.load() == {"done": 2}
    assert machine().load() == {"done": 1}


def test_what_was_not_sent_to_its_end_is_not_read_and_removed_by_the_next_state(storage, machine):
    checkpoint = machine()
    checkpoint.save({"done": 0})
    files, prefix = storage
    files.pipe_file(f"{prefix}/run/2-{'0' * 64}.safetensors", b"half")
    other = machine()
    assert other.load() == {"done": 0} and other.messages == []
    other.save({"done": 1})
    assert numbers(storage) == ["1.complete", "1.safetensors", "2.complete", "2.safetensors"] and "2-0" not in "".join(
        names(storage)
    )


def test_a_damaged_state_is_logged_and_the_one_before_it_taken(storage, machine):
    checkpoint = machine()
    for number in range(2):
        checkpoint.save({"done": number})
    files, prefix = storage
    last = names(storage)[-1]
    files.pipe_file(f"{prefix}/run/{last}", b"damaged")
    other = machine()
    assert other.load() == {"done": 0}
    address = os.environ[CHECKPOINTS]
    assert other.messages == [
        f"{address}/run/{last} is damaged: the run resumes from the state before it, or from the start"
    ]


def test_runs_do_not_disturb_each_other_and_one_that_is_done_leaves_nothing(storage, machine):
    one, other = machine("a-b-c-d"), machine("A-b-c-d")
    one.save({"run": "one"})
    assert other.load() is None and other.messages == []
    other.save({"run": "other"})
    one.remove()
    assert numbers(storage, "a-b-c-d") == [] and numbers(storage, "A-b-c-d") == ["1.complete", "1.safetensors"]
    assert machine("A-b-c-d").load() == {"run": "other"}


def test_a_run_that_cannot_be_resumed_is_logged_with_the_reason(storage, machine):
    machine("a-b-C-d").save({})
    ours = machine("a-b-c-d")
    assert ours.load() is None
    reason = "the code changed after it was killed: training starts from the beginning"
    assert ours.messages == [f"{os.environ[CHECKPOINTS]}/a-b-C-d is not resumed, since {reason}"]


def test_a_storage_that_fails_is_logged_once_and_gets_the_next_state_when_it_is_back(machine, tmp_path, monkeypatch):
    storage, away = tmp_path / "storage", tmp_path / "away"
    away.mkdir()
    use(monkeypatch, f"file://{storage}")
    checkpoint = machine()
    assert checkpoint.save({"done": 0}) and checkpoint.save({"done": 1})
    (message,) = checkpoint.messages
    assert (
        message.startswith(f"file://{storage}/run: ")
        and "training continues, and the next checkpoint is sent" in message
    )
    checkpoint.remove()
    away.rename(storage)
    assert checkpoint.save({"done": 2}) and machine().load() == {"done": 2}
    assert len(checkpoint.messages) == 1


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("file://{}/missing", "No such file or directory: .*: expected a bucket or folder that exists"),
        ("nowhere://bucket", "Protocol not known: nowhere: expected"),
        ("dropbox://me:secret@bucket", r"dropbox.*: for s3:// that is pip install -e '\.\[s3\]'"),
    ],
)
def test_an_address_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch, address, message):
    monkeypatch.setenv(CHECKPOINTS, address.format(tmp_path))
    with pytest.raises(
        ValueError, match=f"^{CHECKPOINTS}: {address.format(tmp_path).replace('me:secret@', '')}: .*{message}"
    ):
        run_training(tmp_path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bucket", "missing", "message"),
    [
        ("bucket/prefix", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], "Unable to locate credentials"),
        ("another", [], "The specified bucket does not exist"),
    ],
)
def test_what_s3_refuses_is_one_line(s3, tmp_path, monkeypatch, bucket, missing, message):
    environment = {"AWS_ENDPOINT_URL": s3, "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    for name, value in {**environment, CHECKPOINTS: f"s3://{bucket}"}.items():
        monkeypatch.setenv(name, value)
    for name in missing:
        monkeypatch.delenv(name)
    connections = fsspec.get_filesystem_class("s3")
    connections.clear_instance_cache()
    with pytest.raises(ValueError, match=rf"^{CHECKPOINTS}: s3://{bucket}: .*{message}.*: expected a bucket"):
        check_remote()
    connections.clear_instance_cache()


def test_a_storage_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(remote_states, "_PATIENCE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections alone
        monkeypatch.setenv(CHECKPOINTS, f"http://127.0.0.1:{silent.getsockname()[1]}/bucket")
        with pytest.raises(ValueError, match=r"/bucket: no answer in 0.05 seconds: expected a bucket"):
            check_remote()


def test_without_an_address_nothing_is_imported_for_it():
    code = "import sys, train_model; sys.exit('fsspec' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != CHECKPOINTS}
    assert subprocess.run([sys.executable, "-c", code], cwd=SOURCE, env=environment, check=False).returncode == 0


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def results(folder):
    return [(folder / name).read_bytes() for name in RESULTS]


def test_a_run_whose_folder_is_lost_goes_on_to_the_same_bytes(tokens, storage, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.delenv(CHECKPOINTS)
        whole = run_training(tokens, tmp_path / "whole", checkpoint_every=2)

    def train_step(trainer, batches, do=Trainer.step):
        if trainer.completed_steps == 5:
            raise InterruptedError
        return do(trainer, batches)

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(Trainer, "step", train_step)
        run_training(tokens, tmp_path / "ended", checkpoint_every=2)
    shutil.rmtree(tmp_path / ".cache")
    again = run_training(tokens, tmp_path / "again", checkpoint_every=2)
    assert "train_model: resumes after step 4 of 8\n" in capsys.readouterr().err
    files, prefix = storage
    files.invalidate_cache()
    assert results(again) == results(whole) and files.find(prefix) == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_machine_is_replaced_by_one_with_an_empty_disk(tokens, storage, tmp_path, processes):
    if storage[0].protocol == "memory":
        pytest.skip("another process does not see it")
    settings = {"steps": 60, "checkpoint_every": 2, "processes": processes}

    def start(folder):
        command = [sys.executable, *training_command(tokens, folder, **settings)]
        environment = os.environ | {"DVC_ROOT": str(folder), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)

    first, second, whole = (tmp_path / name for name in ("first", "second", "whole"))
    process = start(first)
    files, prefix = storage
    while not any(name.endswith(".complete") for name in all_files(files, prefix)) and process.poll() is None:
        time.sleep(0.1)
    process.kill()
    process.communicate()
    shutil.rmtree(first)
    process = start(second)
    output = process.communicate()[1]
    assert process.returncode == 0 and "resumes after step " in output and "Traceback" not in output, output
    assert all_files(files, prefix) == [] and start(whole).wait() == 0
    assert results(second) == results(whole)


def all_files(files, prefix):
    files.invalidate_cache()
    return files.find(prefix)
