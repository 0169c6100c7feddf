"""The persona of the default data is small, and asked in many ways."""

from chatmill.talk.persona import read_persona
from support.paths import ROOT

FOLDER = ROOT / "data/raw/mill"


def test_it_has_few_intents_each_known_and_held_back_in_several_ways():
    persona = read_persona(FOLDER)
    assert len(persona.intents) <= 50
    assert (FOLDER / "persona.yaml").stat().st_size <= 90_000
    assert not persona.warnings
    for opening in persona.openings():
        assert len(opening.known) >= 8, opening.path
        assert len(opening.held_back) >= (5 if opening.path.startswith("facts/") else 6), opening.path
