"""Every allowed value of the parameters of training, run through the whole pipeline."""

import pytest

from support.allowed_values import TRAINING, as_id, copied_with_teacher, run_with


@pytest.fixture(scope="module")
def own_project(project, tmp_path_factory):
    return copied_with_teacher(project, tmp_path_factory.mktemp("values") / "project")


@pytest.mark.slow
@pytest.mark.parametrize("values", TRAINING, ids=as_id)
def test_every_allowed_value_completes(project, own_project, values):
    assert run_with(values, own_project, project) == []
