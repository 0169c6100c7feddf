import pytest

from chatmill.pipeline import settings
from chatmill.pipeline.settings import setting


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the file of settings of a folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHATMILL_WORKERS", raising=False)
    settings._read.cache_clear()
    yield (tmp_path / ".chatmill.yaml").write_text
    settings._read.cache_clear()


def test_a_variable_comes_before_the_file(write, monkeypatch):
    write("workers: 3\nstore: s3://a/b\n")
    assert (setting("workers"), setting("store")) == ("3", "s3://a/b")
    monkeypatch.setenv("CHATMILL_WORKERS", "5")
    assert setting("workers") == "5"


def test_without_both_there_is_none(write):
    write("# workers: 3\n")
    assert setting("engine") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wokers: 3", r".chatmill.yaml: wokers: expected one of store, "),
        ("workers: [3]", r".chatmill.yaml: workers: expected a text or a number, got \[3\]"),
        ("workers", r".chatmill.yaml: expected lines of `name: value`"),
        ("false", r".chatmill.yaml: expected lines of `name: value`"),
        ("[" * 5000, r".chatmill.yaml: .*recursion"),
        ("workers:\t3\n\tstore: x", r".chatmill.yaml: "),
    ],
)
def test_other_files_are_refused(write, text, message):
    write(text)
    with pytest.raises(ValueError, match=message):
        setting("workers")
