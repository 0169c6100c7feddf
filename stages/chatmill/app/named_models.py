"""Models by the names that users give them: paths, and experiments, branches, tags and commits of DVC."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chatmill.inference.model_loading import LoadedModel, load_model
from chatmill.pipeline.processes import USER_ERRORS, error_line

MODEL_FOLDERS = (Path("data/export/onnx"), Path("data/model"))  # the pipeline writes them; the first one is preferred
NO_EXPORT_FILE = "formats.json"  # is in an export's folder only where the model has no export
WORKSPACE = "workspace"  # what `dvc exp show` calls the files in the folder


def default_model() -> Path:
    """The pipeline's model in this folder. Raises ValueError where there is none."""
    for folder in MODEL_FOLDERS:
        if folder.is_dir() and not (folder / NO_EXPORT_FILE).exists():
            return folder
    folders = " or ".join(map(str, MODEL_FOLDERS))
    raise ValueError(f"no {folders} here: name a model with --model, or run {repro_commands()}")


@contextmanager
def fetch_model(model: str | Path) -> Iterator[Path]:
    """Yield the path of a model. The model of a DVC run is fetched into a folder that is removed afterwards."""
    with TemporaryDirectory(prefix="chatmill-", ignore_cleanup_errors=True) as folder:
        yield find_or_fetch(str(model), Path(folder) / "model")


def find_or_fetch(name: str, folder: Path) -> Path:
    """The path of this name; else the model of the run of this name, copied into `folder`.

    Raises ValueError where there is no such path or run, or the run's model is in no cache or remote storage.
    """
    if Path(name).exists():
        return Path(name)
    try:
        from dvc.api import DVCFileSystem  # paths work where it is not installed
        from dvc.exceptions import DvcException
        from dvc.repo import Repo
        from dvc_data.index import DataIndexError
    except ImportError as error:
        raise ValueError(f"{name}: no such file or folder, and experiments require DVC: pip install dvc") from error
    try:
        with _open_run(Repo, name) as repo:
            files = DVCFileSystem(repo)
            available = [output for output in MODEL_FOLDERS if files.isdir(output.as_posix())]
            if not available:
                missing = " or ".join(map(str, MODEL_FOLDERS))
                raise ValueError(f"{name}: this run has no {missing}: run {rebuild_commands(name)}")
            for output in available:
                files.get(output.as_posix(), str(folder), recursive=True)
                if not (folder / NO_EXPORT_FILE).exists():
                    break
                shutil.rmtree(folder)
    except (FileNotFoundError, DataIndexError) as error:
        raise ValueError(
            f"{name}: its model is neither in DVC's cache nor in a remote storage: push it from where it was trained "
            f"(`dvc push`, `dvc exp push`), or rebuild it ({rebuild_commands(name)})"
        ) from error
    except DvcException as error:
        remedy = "`dvc exp list --all-commits` lists the experiments, and no model is downloaded by its name"
        if lacks_git(Path.cwd()):
            remedy = f"run {repro_commands()}"
        raise ValueError(
            f"{name}: no such file or folder, and no experiment, branch, tag or commit either ({error}): {remedy}"
        ) from error
    return folder


def _open_run(repo_class: Any, name: str) -> Any:
    """The repository as it was at a run. Raises ValueError for a file or folder of a commit, such as `HEAD:data`."""
    try:
        return repo_class(rev=None if name == WORKSPACE else name)
    except AttributeError as error:  # DVC takes it for a commit
        raise ValueError(
            f"{name}: no commit, but a file or folder of one: name an experiment, branch or commit"
        ) from error


def rebuild_commands(name: str) -> str:
    return "`dvc repro`" if name == WORKSPACE else f"`dvc exp apply {name}` or `git checkout {name}`, then `dvc repro`"


def repro_commands() -> str:
    """The commands that run the pipeline, in this folder or where they can."""
    if not Path("dvc.yaml").exists():
        return "`dvc repro` in the folder of a project"
    start = "`git init && git add -A && git commit -m Start`, then " if lacks_git(Path.cwd()) else ""
    return f"{start}`dvc repro`"


def lacks_git(folder: Path) -> bool:
    """Whether a folder holds the project but lies in no git repository, as after unpacking a ZIP; DVC needs one."""
    return (folder / "dvc.yaml").exists() and not any((one / ".git").exists() for one in (folder, *folder.parents))


# Models by the names that a user gives them, which the errors of a model have, too.


@contextmanager
def named_errors(name: str | Path) -> Iterator[None]:
    """Errors of the user in the body, which does not know the model's name, are ValueErrors that begin with it."""
    try:
        yield
    except USER_ERRORS as error:
        raise ValueError(f"{name}: {error_line(error)}") from error


def load_named(name: str | Path, device: str = "auto", threads: int | None = None, **options: Any) -> LoadedModel:
    """The model of a path or a DVC run, as `load_model` loads it. Raises ValueError that begins with the name."""
    with fetch_model(name) as path:
        try:
            return load_model(path, device, threads, **options)
        except USER_ERRORS as error:
            message, given = error_line(error).replace(str(path), str(Path(name))), str(Path(name))
            is_named = re.match(rf"{re.escape(given)}(/|: | )", message)
            raise ValueError(message if is_named else f"{name}: {message}") from error
