import json

import numpy as np
import pytest

from chatmill.encoded.token_files import read_meta, read_split
from chatmill.teacher.ngram_teacher import NgramTeacher
from chatmill.teacher.predictions import BYTES, read_predictions
from support.training_runs import write_teacher, write_tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def test_predictions_are_read_as_they_were_made(tokens, tmp_path):
    write_teacher(tokens, tmp_path / "teacher", ngram_order=4)
    found, formats = read_predictions(tmp_path / "teacher", read_meta(tokens / "tokens"))
    train = read_split(tokens / "tokens", "train")
    kept = formats["kept"]
    expected = NgramTeacher(train, 4).predict(slice(0, len(train.offsets) - 1), kept)
    assert formats == {"kept": 5, "ngram": {"order": 4}}
    assert np.array_equal(found.tokens, expected.tokens)
    assert np.array_equal(found.chances, expected.chances.astype(np.float16))
    assert sum(array.itemsize * kept for array in found) <= BYTES
    assert found.chances.max() > 0.5 and (found.chances.sum(axis=1, dtype=float) <= 1.001).all()


def test_why_there_are_none_is_written_down(tokens):
    found, formats = read_predictions(tokens / "teacher", read_meta(tokens / "tokens"))
    assert found is None and formats == {"reason": "score_teacher.teacher and score_teacher.ngram_order are null"}


def test_the_teacher_of_other_tokens_is_refused(tokens, tmp_path):
    other = write_tokens(tmp_path, answers=("no", "no way"))
    write_teacher(other, tmp_path / "taught", ngram_order=3)
    with pytest.raises(ValueError, match=r"taught has predictions for other tokens: run the stage score_teacher anew"):
        read_predictions(tmp_path / "taught", read_meta(tokens / "tokens"))


def test_a_folder_without_a_manifest_is_refused(tokens, tmp_path):
    with pytest.raises(ValueError, match="not written by score_teacher"):
        read_predictions(tmp_path, read_meta(tokens / "tokens"))


def test_a_damaged_file_is_refused(tokens, tmp_path):
    folder = tmp_path / "teacher"
    write_teacher(tokens, folder, ngram_order=3)
    (folder / "formats.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match=r"formats\.json is damaged"):
        read_predictions(folder, read_meta(tokens / "tokens"))
