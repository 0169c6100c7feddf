import pytest

from chatmill.app.cli import main
from support.external_folder import write_external
from support.gguf_reading import read
from support.tiny import write_model


def test_a_model_made_elsewhere_is_converted(tmp_path, capsys):
    write_external(tmp_path / "model", "llama")
    assert main(["gguf", str(tmp_path / "model"), str(tmp_path / "out"), "--quantize", "q4_0"]) == 0
    files = [tmp_path / "out" / f"model-{kind}.gguf" for kind in ("f32", "q4_0")]
    lines = [f"{file}: {file.stat().st_size / 1e6:,.1f} MB" for file in files]
    assert capsys.readouterr().out.splitlines()[-2:] == lines
    assert set(read(files[1]).types.values()) == {"F32", "F16", "Q4_0"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "out"], "nowhere: no such folder: expected a model of the pipeline or of Hugging Face"),
        (["model", "model"], "model: already exists: name a new folder"),
        (["empty", "out"], "empty/config.json is missing: it describes the model of the weights"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["gguf", *arguments]) == 1
    assert capsys.readouterr().err == f"chatmill: {message}\n"
    assert sorted(tmp_path.rglob("*")) == before
