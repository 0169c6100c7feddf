"""The folder in which DVC trains a run beside the workspace, and the last lines of the log of one that failed."""

import json
from pathlib import Path
from typing import Any

RECORDS = Path(".dvc/tmp/exps/run")  # of `dvc exp run --temp` and of its queue
LOG_BYTES, LOG_LINES = 8192, 4  # of the end of a log


def training_folder(root: Path, revision: str) -> Path | None:
    """The copy of the repository in which a run trains; None once DVC has removed it."""
    try:
        record = json.loads((root / RECORDS / revision / f"{revision}.run").read_bytes())
        folder = Path(record["root_dir"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return folder if folder.is_dir() else None


def last_error(executor: dict[str, Any] | None) -> str:
    """The last lines of the log of a run, as `dvc exp show` tells its place; "" where it is gone."""
    try:
        with Path((executor or {})["local"]["log"]).open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - LOG_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    return "\n".join(list(dict.fromkeys(filter(str.strip, text.splitlines())))[-LOG_LINES:])
