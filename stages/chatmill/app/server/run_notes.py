"""Notes that people write about runs, with tags among their words, such as `#baseline`.

A note is a git note of the run's commit, in refs/notes/chatmill. So it remains when the run is renamed, pushed and
pulled, and no file of the project changes; `git push origin refs/notes/chatmill` gives it to others.
"""

import re
import unicodedata
from pathlib import Path

from chatmill.app.runs.git_runs import contents_of, run_git
from chatmill.app.server.api_errors import ApiError
from chatmill.report.metrics import valid_text

MAX_NOTE = 2000  # characters
MAX_NAME = 100
NAME = re.compile(rf"\w[\w.-]{{0,{MAX_NAME - 1}}}")
NOTES = ("notes", "--ref=chatmill")
EDITOR = ("-c", "user.useConfigOnly=true")  # no name guessed from the machine's


def read_notes(folder: Path) -> dict[str, str]:
    """The notes of a repository by commit; cut where they are longer than this page writes them."""
    lines = [line.split() for line in run_git(folder, [*NOTES, "list"]).decode().splitlines()]
    contents = contents_of(folder, [note for note, _ in lines])
    texts = (content.decode("utf-8", "replace").strip()[:MAX_NOTE] for content in contents)
    return {commit: text for (_, commit), text in zip(lines, texts, strict=True)}


def write_note(folder: Path, commit: str, text: str) -> None:
    """Replace the note of a commit; an empty one is removed. Raises ValueError with git's reason."""
    if not text:
        run_git(folder, [*NOTES, "remove", "--ignore-missing", commit])
        return
    blob = run_git(folder, ["hash-object", "-w", "--stdin"], text.encode()).decode().strip()
    run_git(folder, [*EDITOR, *NOTES, "add", "--force", f"--reuse-message={blob}", commit])  # keeps lines with a #


def check_note(text: object) -> str:
    """A note without blanks around it. Raises ApiError for one that is too long, or has control characters."""
    if not isinstance(text, str) or valid_text(text) != text:
        raise ApiError(400, "note: expected a text", param="note")
    note = text.replace("\r\n", "\n").strip()
    if len(note) > MAX_NOTE:
        raise ApiError(400, f"note: expected at most {MAX_NOTE:,} characters, got {len(note):,}", param="note")
    if hidden := next((one for one in note if unicodedata.category(one) == "Cc" and one not in "\n\t"), None):
        raise ApiError(400, f"note: the control character U+{ord(hidden):04X} cannot be shown: delete it", param="note")
    return note


def check_name(name: object) -> str:
    """A name for an experiment. Raises ApiError for what git or a shell would read otherwise."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.endswith((".", ".lock")) or ".." in name:
        message = f"name: expected at most {MAX_NAME} letters, digits, single dots, - or _, the first no dot or -"
        raise ApiError(400, f"{message}, got {name!r:.60}", param="name")
    return name
