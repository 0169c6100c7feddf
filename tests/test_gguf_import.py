import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants

from chatmill.tokenizer.formats.gguf_files import read_gguf

MATRIX = np.arange(128, dtype=np.float32).reshape(4, 32) / 100
FIELDS = {"text": "Grüße", "flag": True, "small": 0.5, "list": ["a", "", "中"], "numbers": [1, -2, 3]}


def written(file):
    writer = GGUFWriter(file, "llama")
    writer.add_string("text", FIELDS["text"])
    writer.add_bool("flag", FIELDS["flag"])
    writer.add_float32("small", FIELDS["small"])
    for name in ("list", "numbers"):
        writer.add_array(name, FIELDS[name])
    writer.add_tensor("plain", MATRIX)
    writer.add_tensor("half", MATRIX.astype(np.float16))
    for kind in ("Q8_0", "Q4_0", "BF16", "Q5_1"):
        raw = GGMLQuantizationType[kind]
        writer.add_tensor(kind, quants.quantize(MATRIX, raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_fields_and_tensors_are_what_was_written(tmp_path):
    content = read_gguf(written(tmp_path / "a.gguf"))
    assert {name: content.fields[name] for name in FIELDS} == FIELDS
    assert content.fields["general.architecture"] == "llama"
    np.testing.assert_array_equal(content.tensor("plain"), MATRIX)
    np.testing.assert_array_equal(content.tensor("half"), MATRIX.astype(np.float16))
    for name, error in (("Q8_0", 0.006), ("BF16", 0.006), ("Q5_1", 0.03), ("Q4_0", 0.1)):
        found = content.tensor(name)
        assert found.dtype == np.float32 and np.abs(found - MATRIX).max() < error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "not a GGUF file"),
        (lambda data: b"GGML" + data[4:], "not a GGUF file"),
        (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "a damaged GGUF file"),
        *((lambda data, end=end: data[:end], "a damaged GGUF file") for end in (8, 20, 60, 200, -5)),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, change, message):
    file = written(tmp_path / "a.gguf")
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=message) as raised:
        read_gguf(file)
    assert str(raised.value).startswith(f"{file}: ") and "\n" not in str(raised.value)
