from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.processors import TransformationInput

from chatmill.app.terminal.editor import MAX_CHARACTERS, PastedTexts

LONG = st.text(min_size=1).map(lambda text: text * (MAX_CHARACTERS + 1))
NOTE = "[pasted text, 1,001 characters, 1 line]"


@given(st.lists(st.one_of(st.text(), LONG)))
def test_what_is_folded_is_unfolded_again(texts):
    pasted = PastedTexts()
    folded = [pasted.fold(text) for text in texts]
    assert pasted.unfold("".join(folded)) == "".join(texts)
    assert all(len(short) <= MAX_CHARACTERS for short in folded)


def shown(pasted, line):
    buffer = Buffer()
    buffer.text = line
    fragments = [("", character) for character in line]
    return pasted.apply_transformation(
        TransformationInput(BufferControl(buffer), buffer.document, 0, lambda place: place, fragments, 80, 24)
    )


def test_a_note_stands_where_the_text_is_and_the_cursor_passes_it_at_once():
    pasted = PastedTexts()
    line = shown(pasted, f"a {pasted.fold('x' * 1001)}!")
    assert "".join(text for _, text in line.fragments) == f"a {NOTE}!"
    end = 2 + len(NOTE)
    assert [line.source_to_display(place) for place in range(6)] == [0, 1, 2, end, end + 1, end + 2]
    places = {0: 0, 2: 2, 3: 2, end - 1: 2, end: 3, end + 1: 4, end + 2: 5}
    assert {place: line.display_to_source(place) for place in places} == places
