import pytest

from support.exported import TYPES, export


@pytest.fixture(scope="session", params=TYPES)
def exported(request, tmp_path_factory):
    """A small tokenizer of each type, and everything it is exported to."""
    return export(request.param, tmp_path_factory.mktemp(request.param))
