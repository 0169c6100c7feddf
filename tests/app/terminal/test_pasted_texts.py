from hypothesis import given
from hypothesis import strategies as st

from chatmill.app.terminal.editor import MAX_CHARACTERS, PastedTexts

LONG = st.text(min_size=1).map(lambda text: text * (MAX_CHARACTERS + 1))


@given(st.lists(st.one_of(st.text(), LONG)))
def test_what_is_folded_is_unfolded_again(texts):
    pasted = PastedTexts()
    folded = [pasted.fold(text) for text in texts]
    assert pasted.unfold("".join(folded)) == "".join(texts)
    assert all(len(short) <= MAX_CHARACTERS for short in folded)
