import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from chatmill.checkpoints.weights import read_weights


class Calls:
    """An object whose pickle makes the reader call something."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


HOSTILE = {
    "code": (lambda file: torch.save(Calls(print, "called"), file), "PyTorch cannot read it"),
    "huge shape": (
        lambda file: torch.save({"model.norm.weight": torch.zeros(4)[:1].expand(1 << 40)}, file),
        r"model\.norm\.weight has the shape \(1099511627776,\), but less data in the file",
    ),
    "before 1.6": (
        lambda file: torch.save({"a": torch.zeros(4)}, file, _use_new_zipfile_serialization=False),
        "PyTorch cannot read it",
    ),
    "no weights": (lambda file: torch.save([torch.zeros(3)], file), "no weights in it, nor in its model, state_dict"),
}


@pytest.mark.parametrize(("save", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_checkpoint_is_refused(tmp_path, capfd, save, message):
    file = tmp_path / "pytorch_model.pt"
    save(file)
    with pytest.raises(ValueError, match=rf"pytorch_model\.pt: .*({message})"):
        read_weights([file])
    assert "called" not in capfd.readouterr().out


@settings(max_examples=50, deadline=None)
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
