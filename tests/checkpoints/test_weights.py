import json
import pickle
import resource
import struct
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from chatmill.checkpoints import weights
from chatmill.checkpoints.weights import read_weights


class Calls:
    """An object whose pickle makes the reader call something."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def rewritten(file, change, compression=zipfile.ZIP_STORED):
    """A checkpoint with another data.pkl."""
    with zipfile.ZipFile(file) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, change(data) if name.endswith("data.pkl") else data)


def save_calls(file, *call):
    torch.save({"model.norm.weight": Calls(*call)}, file)


def save_compressed(file):
    torch.save({"model.norm.weight": torch.zeros(1 << 20)}, file)
    rewritten(file, bytes, zipfile.ZIP_DEFLATED)


def save_short_storage(file):
    torch.save({"model.norm.weight": torch.zeros(4)}, file)
    rewritten(file, lambda data: data.replace(b"K\x04", b"J\xff\xff\xff\x7f"))


def save_two_lists(file):
    torch.save({"model.norm.weight": torch.zeros(4)}, file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("archive/DATA.PKL", pickle.dumps(Calls(print, "called"), 2))


HOSTILE = {
    "code": (lambda file: save_calls(file, print, "called"), r"would call __builtin__\.print: weights need no code"),
    "bytes": (lambda file: save_calls(file, bytearray, 8 << 30), r"would call __builtin__\.bytearray"),
    "tensor": (lambda file: save_calls(file, torch.Tensor, 8 << 30), r"would call torch\.Tensor"),
    "no storage": (
        lambda file: save_calls(
            file, torch._utils._rebuild_meta_tensor_no_storage, torch.int8, (1 << 40,), (1,), False
        ),
        r"would call torch\._utils\._rebuild_meta_tensor_no_storage",
    ),
    "huge shape": (
        lambda file: torch.save({"model.norm.weight": torch.zeros(4)[:1].expand(1 << 40)}, file),
        r"model\.norm\.weight has the shape \(1099511627776,\), but less data in the file",
    ),
    "short storage": (save_short_storage, "PyTorch cannot read it|more than the file holds"),
    "two lists": (save_two_lists, "expected one data.pkl of at most 4,194,304 bytes"),
    "bare storage": (
        lambda file: save_calls(file, torch.UntypedStorage, 8 << 30),
        r"would call torch\.storage\.UntypedStorage",
    ),
    "compressed": (save_compressed, "its parts are compressed"),
    "before 1.6": (
        lambda file: torch.save({"a": torch.zeros(4)}, file, _use_new_zipfile_serialization=False),
        r"not a checkpoint of PyTorch 1\.6 or later: save it again",
    ),
    "no list": (lambda file: zipfile.ZipFile(file, "w").close(), "expected one data.pkl of at most 4,194,304 bytes"),
    "no weights": (lambda file: torch.save([torch.zeros(3)], file), "no weights in it, nor in its model, state_dict"),
}


@pytest.mark.parametrize(("save", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_checkpoint_is_refused(tmp_path, capfd, save, message):
    file = tmp_path / "pytorch_model.pt"
    save(file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=rf"pytorch_model\.pt: .*({message})"):
        read_weights([file])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert "called" not in capfd.readouterr().out


def save_header(file, header):
    content = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(content)) + content)


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def test_many_files_hold_no_more_tensors_than_one(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MAX_TENSORS", 6)
    files = [tmp_path / f"{name}.safetensors" for name in "abc"]
    for file in files:
        save_header(file, {f"{file.stem}{i}": EMPTY for i in range(3)})
    assert len(read_weights(files[:2])) == 6
    with pytest.raises(ValueError, match=r"c\.safetensors: over 6 tensors: save the model in fewer"):
        read_weights(files)


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 1 << 20), byte=st.integers(0, 255), cut=st.booleans())
@pytest.mark.parametrize("save", [torch.save, save_file])
def test_a_damaged_file_is_refused_or_read_whole(tmp_path_factory, save, place, byte, cut):
    file = tmp_path_factory.getbasetemp() / f"damaged{'.pt' if save is torch.save else '.safetensors'}"
    save({"model.norm.weight": torch.arange(8.0)}, file)
    data = bytearray(file.read_bytes())
    place %= len(data)
    data[place] = byte
    file.write_bytes(data[:place] if cut else data)
    try:
        weights = read_weights([file])
    except ValueError as error:
        assert str(file) in str(error)
    else:
        assert sum(weight.clone().numel() for weight in weights.values()) <= len(data)
