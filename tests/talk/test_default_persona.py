"""The persona of the default data is broad, asked in many ways, and small enough to be read."""

from collections import Counter

import pytest

from chatmill.talk.persona import read_persona
from support.paths import ROOT

FILE = ROOT / "data/raw/talk.yaml"


@pytest.fixture(scope="module")
def persona():
    return read_persona(FILE)


def test_it_has_intents_enough_and_what_follows_them_up_to_the_fourth_turn(persona):
    exchanges = Counter(len(chain) for intent in persona.intents for chain in intent.descend())
    assert len(persona.intents) >= 120
    assert exchanges.keys() == {1, 2, 3, 4}
    assert min(exchanges.values()) >= 5


def test_each_opening_is_known_and_held_back_in_several_ways(persona):
    for opening in persona.openings():
        assert len(opening.known) >= 8, opening.path
        assert len(opening.held_back) >= 3, opening.path
