"""A small persona, with everything that the format has."""

from pathlib import Path

PERSONA = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")


def write_persona(folder: Path, text: str = PERSONA):
    file = folder / "talk.yaml"
    file.write_text(text, encoding="utf-8")
    return file
