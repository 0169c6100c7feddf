import shutil

import pytest
from dvc.repo import Repo

from support.small_project import write_project


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_project(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def project(finished, tmp_path, monkeypatch):
    """A copy of a finished project that DVC knows: it has read every file."""
    shutil.copytree(finished, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    with Repo(".") as repo:
        assert repo.status() == {}
    return tmp_path / "project"
