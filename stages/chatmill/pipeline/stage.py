"""How every stage script starts.

A stage is a function `main`: its positional parameters are the files and folders on the command line, `Output` those
it writes; its keyword-only parameters are the section of params.yaml that is named after the script, and `Section`
ones are the sections of their own names.

    @stage
    def main(chat: Path, tokens: Output, *, template: Template) -> None:
"""

import ctypes
import fcntl
import inspect
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import ConfigDict, Field, ValidationError, validate_call

Output = Annotated[Path, "output"]
Section = Annotated[dict[str, Any], "section"]
Share = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]

SCRATCH = ".cache"  # ignored by git and by DVC, in whatever folder it stands
_PR_SET_PDEATHSIG = 1
_running: list[list[Callable[[], None]]] = []  # the stage of this process, if any: what to do when it is done


class _Loader(yaml.SafeLoader):
    """YAML in which `1e-3` is a number, as DVC reads it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)$"),
    list("-+0123456789."),
)


def read_params(file: Path = Path("params.yaml")) -> dict[str, Any]:
    """The parameters of all stages."""
    if not file.exists():
        raise ValueError(f"no {file} in {Path.cwd()}: run stages from the top folder of the project")
    try:
        params = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(params, dict):
        raise ValueError(f"{file}: expected one section per stage")
    return params


def stage(main: Callable[..., None]) -> Callable[..., None]:
    """Check what `main` is called with; where its script is what Python runs, run it as a stage."""
    checked = validate_call(config=ConfigDict(extra="forbid"))(main)
    if main.__module__ == "__main__":
        sys.exit(_run(main, checked))
    return checked


def afterwards(act: Callable[[], None]) -> None:
    """Call this when the outputs of the stage stand in their places, and never where it fails; at once without one."""
    if _running:
        _running[-1].append(act)
    else:
        act()


def _run(main: Callable[..., None], checked: Callable[..., None]) -> int:
    name = Path(sys.argv[0]).stem
    die_with_parent()
    try:
        files, outputs = _files(main, sys.argv[1:])
        _running.append([])
        with ExitStack() as held:
            places = {}
            if os.environ.get("RANK", "0") == "0":  # of processes that torchrun started, the first alone writes
                held.enter_context(_lock(name, outputs))
                places = {output: held.enter_context(whole(output)) for output in outputs}
            path = f"{name}.{files[1].name.removesuffix('.jsonl')}" if name == "prepare" else name
            params = _section(path) | {key: read_params().get(key) or {} for key in sections(main)}
            try:
                checked(*(places.get(file, file) for file in files), **params)
            except ValidationError as error:
                raise ValueError(_explain(path, error)) from error
        for act in _running.pop():
            act()
    except (ValueError, OSError) as error:
        print(f"{name}: {_one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _files(main: Callable[..., None], arguments: list[str]) -> tuple[list[Path], list[Path]]:
    """All files of the command line, and those among them that are outputs."""
    parameters = [p for p in inspect.signature(main).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(parameters) != len(arguments):
        names = " ".join(p.name.upper() for p in parameters)
        raise ValueError(f"expected the files {names}, got {len(arguments)} arguments")
    files = [Path(argument) for argument in arguments]
    return files, [file for p, file in zip(parameters, files, strict=True) if is_output(p.annotation)]


def is_output(annotation: Any) -> bool:
    """Whether a parameter of a stage is annotated as `Output`."""
    return get_origin(annotation) is Annotated and "output" in get_args(annotation)


def sections(main: Callable[..., None]) -> list[str]:
    """The sections of params.yaml that a stage reads as a whole, beside its own."""
    parameters = inspect.signature(main).parameters.values()
    return [p.name for p in parameters if get_origin(p.annotation) is Annotated and "section" in get_args(p.annotation)]


def _section(path: str) -> dict[str, Any]:
    """The parameters at a path; `prepare` has a section for each source, named as its output."""
    section = read_params()
    for name in path.split("."):
        section = section.get(name) or {}
        if not isinstance(section, dict):
            raise ValueError(f"params.yaml: {path}: expected keys and values")
    if path.startswith("prepare."):
        if not section:
            raise ValueError(f"params.yaml: no source {path}")
        section = {key: value for key, value in section.items() if key != "path"}
    return section


def _explain(path: str, error: ValidationError) -> str:
    """What is wrong with the parameters of a section, with the path of each key."""
    lines = []
    for problem in error.errors():
        key = ".".join(map(str, (path, *problem["loc"])))
        if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            lines.append(f"params.yaml: unknown parameter {key}")
        elif problem["type"] in ("missing_keyword_only_argument", "missing"):
            lines.append(f"params.yaml: missing parameter {key}")
        else:
            message = problem["msg"][0].lower() + problem["msg"][1:]
            lines.append(f"params.yaml: {key} = {problem['input']!r}: {message.removeprefix('value error, ')}")
    return "; ".join(lines)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {(error.strerror or str(error)).lower()}"
    return " ".join(str(error).split())


def die_with_parent() -> None:
    """End this process when its parent ends, also when it is already gone: an orphan would write beside its successor.

    Every process that a stage starts calls this first.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        _watch_parent(parent)
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _watch_parent(parent: int) -> None:
    import threading

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _lock(name: str, outputs: list[Path]) -> Iterator[None]:
    """Hold the stage's lock; wait for whoever has it."""
    file = Path(SCRATCH, "locks", "-".join([name, *(output.stem for output in outputs[:1])]))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{name}: waiting for another run of this stage to end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def whole(output: Path) -> Iterator[Path]:
    """A place to write a file or folder; it is renamed to `output` when the block ends well, and removed otherwise."""
    scratch = output.parent / SCRATCH
    _sweep(scratch)
    folder = scratch / str(os.getpid())
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / output.name
    try:
        yield place
        if not place.exists():
            raise ValueError(f"{output} was not written")
        if output.is_dir() and not output.is_symlink():
            shutil.rmtree(output)
        place.replace(output)
    finally:
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        for empty in (folder, scratch):
            if empty.exists() and not any(empty.iterdir()):
                empty.rmdir()


def _sweep(scratch: Path) -> None:
    """Remove what processes left that are no more."""
    if not scratch.is_dir():
        return
    for folder in scratch.iterdir():
        if folder.name.isdigit() and not _alive(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
