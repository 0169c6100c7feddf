"""Where a machine works: settings that are no input of any stage, from variables or from a file that git ignores.

    # .chatmill.yaml
    store: s3://bucket/chatmill      # $CHATMILL_STORE
    workers: 8                       # $CHATMILL_WORKERS

A variable takes precedence over the file.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml

SETTINGS_FILE = Path(".chatmill.yaml")
SettingName = Literal["store", "store_cache_gb", "engine", "workers", "slurm", "checkpoints"]
NAMES: tuple[SettingName, ...] = ("store", "store_cache_gb", "engine", "workers", "slurm", "checkpoints")


def variable(name: SettingName) -> str:
    """The environment variable of a setting."""
    return f"CHATMILL_{name.upper()}"


def setting(name: SettingName) -> str | None:
    """The value of a setting, or None. Raises ValueError for a file of settings that is none."""
    return os.environ.get(variable(name)) or _read(SETTINGS_FILE.absolute()).get(name)


@lru_cache(maxsize=1)
def _read(file: Path) -> dict[str, str]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{file.name}: {' '.join(str(error).split())}") from error
    if content is None:  # it is empty
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{file.name}: expected lines of `name: value`, with the names {', '.join(NAMES)}")
    for name, value in content.items():
        if name not in NAMES:
            raise ValueError(f"{file.name}: {name}: expected one of {', '.join(NAMES)}")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"{file.name}: {name}: expected a text or a number, got {value!r}")
    return {name: str(value) for name, value in content.items()}
