"""Runs end, whatever a graph does."""

import pytest

from chatmill.engines.onnx import session
from chatmill.engines.onnx.onnx_engine import open_onnx_engine
from support.hostile_graphs import endless


def test_a_run_that_never_ends_is_ended_and_leaves_what_was_read(tmp_path, monkeypatch):
    endless(tmp_path / "model.onnx", token=3)
    engine = open_onnx_engine(tmp_path / "model.onnx", name="onnx", threads=1)
    engine.append([1, 2])
    with (
        monkeypatch.context() as patch,
        pytest.raises(ValueError, match=r"model\.onnx: running it takes more than .* 1 s"),
    ):
        patch.setattr(session, "SECONDS", 1)
        engine.append([3])
    assert engine.length == 2
    assert engine.append([2]).tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
