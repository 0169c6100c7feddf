import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants

from chatmill.gguf_import import read_gguf

MATRIX = np.arange(128, dtype=np.float32).reshape(4, 32) / 100
FIELDS = {"text": "Grüße", "flag": True, "small": 0.5, "list": ["a", "", "中"], "numbers": [1, -2, 3]}


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


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


def header(*, fields=b"", num_fields=0, tensors=b"", num_tensors=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, num_tensors, num_fields) + fields + tensors


def tensor(name="x", shape=(32, 4), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def field(name="x", kind=4, value=b"\1\0\0\0"):
    return text(name) + struct.pack("<I", kind) + value


def test_fields_and_tensors_are_what_was_written(tmp_path):
    content = read_gguf(written(tmp_path / "a.gguf"))
    assert {name: content.fields[name] for name in FIELDS} == FIELDS
    assert content.fields["general.architecture"] == "llama"
    np.testing.assert_array_equal(content.tensor("plain"), MATRIX)
    np.testing.assert_array_equal(content.tensor("half"), MATRIX.astype(np.float16))
    for name, error in (("Q8_0", 0.006), ("BF16", 0.006), ("Q5_1", 0.03), ("Q4_0", 0.1)):
        found = content.tensor(name).numpy()
        assert found.dtype == np.float32 and np.abs(found - MATRIX).max() < error


END = bytes(512)
ONE = {"num_tensors": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a GGUF file"),
        (b"GGML" + END, "not a GGUF file"),
        (b"GGUF\3\0\0\0", "it ends after 8 bytes"),
        (header(version=1) + END, "version 1: expected 2 or 3"),
        (header(version=3 << 24) + END, "little-endian"),
        (header(num_fields=1 << 60) + END, "fields: expected at most"),
        (header(num_tensors=1 << 60) + END, "tensors and 0 fields: expected at most"),
        (header(num_fields=1, fields=struct.pack("<Q", 1 << 62)) + END, "it ends after"),
        (header(num_fields=1, fields=field(kind=99)) + END, "a value of type 99"),
        (header(num_fields=1, fields=field(kind=9, value=struct.pack("<IQ", 0, 1 << 62))) + END, "it ends after"),
        (header(num_fields=1, fields=field(kind=9, value=struct.pack("<IQ", 10, 1 << 61))) + END, "it ends after"),
        (header(num_fields=1, fields=field(kind=9, value=struct.pack("<IQ", 8, 1 << 60))) + END, "it ends after"),
        (header(num_fields=1, fields=field(kind=9, value=struct.pack("<IQ", 9, 2))) + END, "a value of type 9"),
        (header(num_fields=2, fields=field() + field()) + END, "the field x twice"),
        (header(num_fields=1, fields=text("é").replace(b"\xa9", b"\xff")) + END, "'utf-8' codec"),
        (header(num_fields=1, fields=field("general.alignment", 4, bytes(4))) + END, "general.alignment 0"),
        (header(num_fields=1, fields=field("general.alignment", 8, text("x"))) + END, "general.alignment 'x'"),
        (header(tensors=tensor() + tensor(), num_tensors=2) + END * 4, "a tensor twice"),
        (header(tensors=tensor(shape=()), **ONE) + END, "0 dimensions"),
        (header(tensors=tensor(shape=(1,) * 9), **ONE) + END, "9 dimensions"),
        (header(tensors=tensor(shape=(0, 4)), **ONE) + END, "has the shape"),
        (header(tensors=tensor(shape=(31,), kind=8), **ONE) + END, "has the shape"),
        (header(tensors=tensor(kind=1000), **ONE) + END, "1000 is not a valid GGMLQuantizationType"),
        (header(tensors=tensor(shape=(1 << 40, 1 << 40)), **ONE) + END, "its tensor x ends at"),
        (header(tensors=tensor(offset=1 << 62), **ONE) + END, "its tensor x ends at"),
        (header(tensors=tensor() + tensor("y", offset=32), num_tensors=2) + END * 4, "its tensor x reaches into"),
    ],
)
def test_a_damaged_or_hostile_file_is_refused_in_one_line(tmp_path, data, message):
    file = tmp_path / "a.gguf"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=message) as raised:
        read_gguf(file)
    assert str(raised.value).startswith(f"{file}: ") and "\n" not in str(raised.value)
