"""Every allowed value of the parameters of training, run through the whole pipeline."""

import pytest

from support.allowed_values import TRAINING, as_id, run_with


@pytest.mark.slow
@pytest.mark.parametrize("values", TRAINING, ids=as_id)
def test_every_allowed_value_completes(project, teaching_project, values):
    assert run_with(values, teaching_project, project) == []
