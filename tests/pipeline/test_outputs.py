from chatmill.pipeline.outputs import atomic_output


def test_an_atomic_output_replaces_a_folder_at_once(tmp_path):
    output = tmp_path / "model"
    output.mkdir()
    (output / "old").touch()
    with atomic_output(output) as place:
        place.mkdir()
        (place / "new").touch()
        assert [file.name for file in output.iterdir()] == ["old"]
    assert [file.name for file in output.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [output]
