import os

import pytest

from chatmill.soft_tokenizer.byte_embedding import ByteEncoder, ByteEncoderShape
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from chatmill.training.model_folder import write_model
from support.tiny import CONFIG, VOCABULARY, random_model


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_whom_the_umask_lets_read_can_read_every_file(tmp_path, umask, mode):
    encoder = ByteEncoder(ByteEncoderShape(layers=0, slots=64), CONFIG.hidden_size)
    write_folder(VOCABULARY, tmp_path / "tokenizer")
    former = os.umask(umask)
    try:
        write_model(tmp_path / "a", random_model(), tmp_path / "tokenizer", VOCABULARY, {"template": "chatml"}, encoder)
    finally:
        os.umask(former)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "a").rglob("*") if file.is_file()} == {mode}
