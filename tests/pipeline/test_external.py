import pytest

from chatmill.pipeline.external import check_external


def test_a_file_in_the_folder_that_dvc_tracks_is_accepted(tmp_path):
    check_external(tmp_path / "initial/earlier", tmp_path / "initial", "train_model.initial")


@pytest.mark.parametrize("name", ["earlier", "initial", "initial/../earlier"])
def test_any_other_is_refused_with_the_commands_that_bring_it_there(tmp_path, name):
    (tmp_path / "earlier").mkdir()
    with pytest.raises(ValueError, match=r"^train_model.initial = .* alone: `cp .*dvc add .*dvc import-url URL"):
        check_external(tmp_path / name, tmp_path / "initial", "train_model.initial")
