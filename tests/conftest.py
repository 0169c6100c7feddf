import gc
import os
import shutil
import subprocess

import pytest
from hypothesis import settings

from support.project import copy_project

os.environ.setdefault("OMP_NUM_THREADS", "2")  # tests run beside each other: more threads, and threads that wait for
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # work without sleeping, take the processor from the next test
os.environ.setdefault("DVC_NO_ANALYTICS", "1")  # else each command of DVC starts a process that sends a report
examples = int(os.environ.get("CHATMILL_EXAMPLES", "20"))  # .ci/run takes more
settings.register_profile("default", deadline=None, derandomize=True, max_examples=examples)
settings.load_profile("default")


def pytest_collection_finish():
    """The imported modules remain for all tests: the garbage collector need not go through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fresh_project(tmp_path_factory):
    """The project with tiny parameters, before its first run."""
    return copy_project(tmp_path_factory.mktemp("project"), git=False)


@pytest.fixture(scope="session")
def git_project(finished_project, tmp_path_factory):
    """The project with tiny parameters under git, with the results of one run, which were committed."""
    copy = copy_project(tmp_path_factory.mktemp("git"), git=True)
    shutil.copytree(finished_project.folder / ".dvc/cache", copy.folder / ".dvc/cache")
    shutil.copy(finished_project.folder / "dvc.lock", copy.folder)
    copy.repro()  # takes all from the cache
    for command in ("config user.name chatmill", "config user.email chatmill@localhost", "add .", "commit -qm Start"):
        subprocess.run(["git", *command.split()], cwd=copy.folder, check=True)
    return copy


@pytest.fixture(scope="session")
def finished_project(fresh_project):
    """The project after one run."""
    fresh_project.first_run = fresh_project.repro()
    return fresh_project


@pytest.fixture(scope="session")
def project(finished_project):
    """The same, by a name that a module may give to a project of its own."""
    return finished_project


@pytest.fixture
def edited(project):
    """Edits a file of the finished project, and restores it afterwards."""
    before = {}

    def edit(path, change):
        file = project.folder / path
        before[file] = file.read_bytes() if file.exists() else b""
        file.unlink(missing_ok=True)  # it may be a link into DVC's cache
        file.write_bytes(change(before[file]))

    yield edit
    for file, content in before.items():
        file.write_bytes(content)
        if not content:  # there was none
            file.unlink()
