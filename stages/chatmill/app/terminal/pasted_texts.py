"""Long texts in the line editor, each folded to a note.

    > Summarise this: [pasted text, 20,312 characters, 310 lines]

In the input such a text is one character, which is deleted and passed like any other. These characters are high
surrogates: no terminal can send one, and no text contains one.
"""

from bisect import bisect_right

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments

from chatmill.app.terminal.formatting import plural

MAX_CHARACTERS, MAX_LINES = 1000, 10  # of a text that is not folded
FIRST, LAST = 0xD800, 0xDBFF


class PastedTexts(Processor):
    """The long texts of an editor. As its processor it shows a note for each."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # by the character that stands for them

    def fold(self, text: str) -> str:
        """The character that stands for a text; the text itself where it is short, or no character is left."""
        if len(text) <= MAX_CHARACTERS and text.count("\n") < MAX_LINES:
            return text
        character = next((one for one, other in self._texts.items() if other == text), chr(FIRST + len(self._texts)))
        if character > chr(LAST):
            return text
        self._texts[character] = text
        return character

    def unfold(self, text: str) -> str:
        """The text with all folded texts in it; the inverse of `fold`."""
        return text.translate({ord(character): long for character, long in self._texts.items()})

    def note(self, character: str) -> str:
        """What is shown for a character of the input: itself, unless it stands for a text."""
        text = self._texts.get(character)
        if text is None:
            return character
        return f"[pasted text, {plural(len(text), 'character')}, {plural(1 + text.count(chr(10)), 'line')}]"

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """A line of the input with the notes in it."""
        fragments = explode_text_fragments(transformation_input.fragments)
        notes = [self.note(character) for character in fragment_list_to_text(fragments)]
        starts = [0]  # of each note in the shown line, and the line's end
        for note in notes:
            starts.append(starts[-1] + len(note))
        shown: StyleAndTextTuples = [
            (f"{fragment[0]} italic" if note != fragment[1] else fragment[0], note)
            for fragment, note in zip(fragments, notes, strict=True)
        ]

        def to_display(position: int) -> int:
            return starts[min(position, len(notes))] + max(0, position - len(notes))

        def to_source(position: int) -> int:
            return bisect_right(starts, position) - 1 + max(0, position - starts[-1])

        return Transformation(shown, source_to_display=to_display, display_to_source=to_source)
