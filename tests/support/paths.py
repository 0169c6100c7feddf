"""The folders of the repository, and of published datasets beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "stages"
SHARED = ROOT.parent / "shared/data"
ANY_FOLDER = Path("/")  # a folder that contains any file that a parameter names
