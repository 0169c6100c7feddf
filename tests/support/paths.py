"""The folders of the repository, and of the published files beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "stages"
SHARED = ROOT.parent / "shared/data"
ANY_FOLDER = Path("/")  # a folder in which any file lies that a parameter names
