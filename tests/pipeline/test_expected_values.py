from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from chatmill.pipeline.signatures import expected_value, in_yaml


class Inner(BaseModel):
    rate: Annotated[float, Field(gt=0, le=1)] | None


class Outer(BaseModel):
    width: Annotated[int, Field(gt=0, multiple_of=32)]
    device: Literal["auto", "cpu", "cuda"]
    compile: Literal["auto"] | bool
    file: Path
    texts: list[str]
    share: dict[str, Annotated[int, Field(ge=0, le=255)]] | None
    inner: Inner


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("width", "a multiple of 32 above 0"),
        ("device", "auto, cpu or cuda"),
        ("compile", "auto, or true or false"),
        ("file", "a path"),
        ("texts", "a list, each entry a string"),
        ("texts.0", "a string"),
        ("share", "keys and values, or null"),
        ("share.letters", "an integer of at least 0 and at most 255"),
        ("inner.rate", "a number above 0 and at most 1, or null"),
    ],
)
def test_types_and_ranges_are_described(path, expected):
    assert expected_value(Outer, path.split(".")) == expected


def test_values_are_shown_as_in_params_yaml():
    assert [in_yaml(value) for value in (None, True, 1.5, "é", ["a"])] == ["null", "true", "1.5", '"é"', '["a"]']
