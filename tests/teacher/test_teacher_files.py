import json

import numpy as np
import pytest

import score_teacher
from chatmill.encoded.token_files import read_meta, read_split
from chatmill.teacher.ngram_teacher import predict
from chatmill.teacher.teacher_files import BYTES, read_predictions
from support.training_runs import write_tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def test_predictions_are_read_as_they_were_made(tokens, tmp_path):
    score_teacher.main(tokens / "tokens", tmp_path / "teacher", ngram_order=4)
    found, formats = read_predictions(tmp_path / "teacher", read_meta(tokens / "tokens"))
    train = read_split(tokens / "tokens", "train")
    kept = formats["ngram"]["kept"]
    expected = [np.concatenate(parts) for parts in zip(*predict(train, 4, kept), strict=True)]
    assert formats == {"ngram": {"order": 4, "kept": 5}}
    assert np.array_equal(found.tokens, expected[0])
    assert np.array_equal(found.chances, expected[1].astype(np.float16))
    assert sum(array.itemsize * kept for array in found) <= BYTES
    assert found.chances.max() > 0.5 and (found.chances.sum(axis=1, dtype=float) <= 1.001).all()


def test_why_there_are_none_is_written_down(tokens):
    found, formats = read_predictions(tokens / "teacher", read_meta(tokens / "tokens"))
    assert found is None and formats == {"ngram": {"reason": "score_teacher.ngram_order is null"}}


def test_the_teacher_of_other_tokens_is_refused(tokens, tmp_path):
    other = write_tokens(tmp_path, answers=("no", "no way"))
    score_teacher.main(other / "tokens", tmp_path / "taught", ngram_order=3)
    with pytest.raises(ValueError, match=r"taught has predictions for other tokens: run the stage score_teacher anew"):
        read_predictions(tmp_path / "taught", read_meta(tokens / "tokens"))


def test_a_folder_without_a_manifest_is_refused(tokens, tmp_path):
    with pytest.raises(ValueError, match="not written by score_teacher"):
        read_predictions(tmp_path, read_meta(tokens / "tokens"))


def test_a_damaged_file_is_refused(tokens, tmp_path):
    folder = tmp_path / "teacher"
    score_teacher.main(tokens / "tokens", folder, ngram_order=3)
    (folder / "formats.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match=r"formats\.json is damaged"):
        read_predictions(folder, read_meta(tokens / "tokens"))
