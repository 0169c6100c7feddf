"""Where things lie."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the repository
SOURCE = ROOT / "stages"
SHARED = ROOT.parent / "shared/data"  # published files beside the repository, where they are
ANYWHERE = Path("/")  # a folder in which any file lies that a parameter names
