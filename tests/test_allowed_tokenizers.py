"""Every allowed value of the parameters of tokenizers and exports, run through the whole pipeline."""

import pytest

from support.allowed_values import TOKENIZERS, as_id, run_with


@pytest.mark.slow
@pytest.mark.parametrize("values", TOKENIZERS, ids=as_id)
def test_every_allowed_value_completes(project, teaching_project, values):
    assert run_with(values, teaching_project, project) == []
