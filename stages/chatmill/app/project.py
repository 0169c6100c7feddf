"""A DVC project as files on this machine, without DVC's own checksums; and what killed commands leave in it."""

import fcntl
import hashlib
import json
import marshal
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.runs import OBJECT, run_git
from chatmill.pipeline.outputs import SCRATCH, discard_scratch
from chatmill.pipeline.processes import is_alive
from chatmill.pipeline.progress import progress
from chatmill.report.markup import get_nested

# Its stages, dvc.lock, cache and remotes.

LOCK_FILE = "dvc.lock"
TEMPORARY = ".tmp"  # ends the name of a file that DVC has not finished


class Item(NamedTuple):
    """A file or folder as dvc.lock or a .dvc file describes it."""

    path: str  # relative to the project
    md5: str  # ends with .dir for a folder
    cached: bool = True
    external: bool = False  # of a .dvc file: no stage makes it


class Project:
    """A DVC project on this machine."""

    def __init__(self, repo: Any) -> None:
        """Raises ValueError where dvc.yaml cannot be read; dvc.lock is not read."""
        from dvc.parsing import DataResolver

        self.root, self.cache = Path(repo.root_dir), Path(repo.cache.legacy.path)
        self.databases = [Path(repo.site_cache_dir) / name for name in ("hashes", "index")]  # of what DVC has read
        urls = {name: settings["url"] for name, settings in repo.config["remote"].items()}
        self.remotes = {name: Path(url) for name, url in urls.items() if "://" not in url and Path(url).is_dir()}
        self.unchecked_remotes = {name: url for name, url in urls.items() if name not in self.remotes}
        pipeline = _read_pipeline(self.root / "dvc.yaml")
        stages = DataResolver(repo, repo.root_dir, pipeline).resolve()["stages"]
        self.commands = {name: stage["cmd"] for name, stage in stages.items()}
        self.outputs = {name: _outputs(stage) for name, stage in stages.items()}
        self.sources = list(_sources(repo))
        self._ignore = repo.dvcignore

    @property
    def temporary(self) -> Path:
        return self.root / ".dvc/tmp"

    def shown(self, file: Path) -> Path:
        return file.relative_to(self.root) if file.is_relative_to(self.root) else file

    def files(self, path: str) -> dict[str, Path]:
        """The files of a folder that DVC does not ignore, by relative path; of a file {"": file}."""
        from dvc.fs import localfs

        place = self.root / path
        if place.is_dir():
            found = map(Path, self._ignore.find(localfs, str(place)))
            return {file.relative_to(place).as_posix(): file for file in found}
        return {"": place} if place.is_file() else {}

    @property
    def lock(self) -> bytes | None:
        file = self.root / LOCK_FILE
        return file.read_bytes() if file.is_file() else None

    @cached_property
    def committed_lock(self) -> bytes | None:
        """dvc.lock as git's HEAD has it, if that is sound."""
        with suppress(ValueError):  # there is none
            content = run_git(self.root, ["show", f"HEAD:./{LOCK_FILE}"])
            return content if lock_problem(content) is None else None
        return None

    @cached_property
    def tracked(self) -> frozenset[str]:
        with suppress(ValueError):  # DVC works without git
            return frozenset(run_git(self.root, ["ls-files", "-z"]).decode(errors="surrogateescape").split("\0"))
        return frozenset()

    def changed_parameters(self, entry: dict[str, Any]) -> list[str]:
        """The parameters that have another value than in the run of an entry of dvc.lock, as FILE: KEY."""
        changed = []
        for file, values in (entry.get("params") or {}).items():
            place = self.root / file
            content = parse_yaml(place) if place.is_file() else {}
            changed += [
                f"{file}: {key}" for key, value in values.items() if get_nested(content, *key.split(".")) != value
            ]
        return changed


@contextmanager
def open_project(folder: Path) -> Iterator[Project]:
    """The DVC project that a folder lies in.

    Raises ValueError where there is none, or where dvc.yaml or a .dvc file cannot be read.
    """
    try:
        from dvc.exceptions import DvcException, NotDvcRepoError  # here, since every other command works without DVC
        from dvc.repo import Repo
    except ImportError as error:
        raise ValueError("this command requires DVC: pip install dvc") from error
    try:
        with Repo(str(folder)) as repo:
            yield Project(repo)
    except NotDvcRepoError as error:
        raise ValueError(f"{folder}: expected a project, a folder with .dvc and dvc.yaml: call this there") from error
    except DvcException as error:
        raise ValueError(f"{folder}: {error}") from error


def _read_pipeline(file: Path) -> dict[str, Any]:
    from dvc.schema import COMPILED_MULTI_STAGE_SCHEMA
    from voluptuous import Invalid

    try:
        content: dict[str, Any] = COMPILED_MULTI_STAGE_SCHEMA(parse_yaml(file))
    except Invalid as error:
        raise ValueError(f"{file}: not what DVC reads ({error}): correct it, or restore it by git") from error
    if not content.get("stages"):
        raise ValueError(f"{file}: no stages: add them, or restore it by git")
    return content


def _outputs(stage: dict[str, Any]) -> dict[str, bool]:
    """The outputs of a stage of dvc.yaml, `PATH` or `PATH: {cache: …}`, and whether the cache has them."""
    listed = [one for kind in ("outs", "metrics", "plots") for one in stage.get(kind) or []]
    options = [{one: {}} if isinstance(one, str) else one for one in listed]
    return {path: (given or {}).get("cache", True) for one in options for path, given in one.items()}


def _sources(repo: Any) -> Iterator[Item]:
    from dvc.dvcfile import load_file
    from dvc.fs import localfs

    for file in sorted(repo.dvcignore.find(localfs, repo.root_dir)):
        for out in load_file(repo, file).stage.outs if file.endswith(".dvc") else ():
            if out.is_in_repo and out.hash_name == "md5" and out.hash_info.value:
                path = Path(os.path.relpath(out.fs_path, repo.root_dir)).as_posix()
                yield Item(path, out.hash_info.value, out.use_cache, external=True)


# The files that DVC writes: dvc.lock, lists of folders, cached objects, and the run cache.


def parse_yaml(file: Path, content: bytes | None = None) -> Any:
    """The content of a YAML file as DVC reads it. Raises ValueError where it cannot be read."""
    from dvc.utils.serialize import ParseError
    from dvc.utils.serialize import parse_yaml as parse

    try:
        return parse((file.read_bytes() if content is None else content).decode("utf-8"), file)
    except (ParseError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not YAML") from error


def lock_problem(content: bytes) -> str | None:
    """What is wrong with the text of a dvc.lock; None for a sound one."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    if not content.strip(b"\0 \n"):
        return "is empty"
    try:
        COMPILED_LOCKFILE_SCHEMA(parse_yaml(Path(LOCK_FILE), content))
    except ValueError:
        return "is not YAML"
    except Invalid as error:
        return f"is not what DVC writes ({error})"
    return None


def items(entry: dict[str, Any], kind: str) -> list[Item]:
    return [Item(one["path"], one["md5"]) for one in entry.get(kind) or [] if "md5" in one]


def listing_bytes(md5_by_path: dict[str, str]) -> bytes:
    """The object that DVC stores for a folder: [{"md5": …, "relpath": …}, …]."""
    listed = [{"md5": md5, "relpath": path} for path, md5 in md5_by_path.items()]
    return json.dumps(sorted(listed, key=lambda one: one["relpath"]), sort_keys=True).encode()


def read_listing(file: Path) -> dict[str, str]:
    """The inverse of `listing_bytes`, for a sound object."""
    return {one["relpath"]: one["md5"] for one in json.loads(file.read_bytes())}


def object_file(store: Path, name: str) -> Path:
    return store / "files/md5" / name[:2] / name[2:]


def stored_objects(store: Path) -> dict[str, Path]:
    """The objects of a cache or remote, by the MD5 in their names."""
    files = sorted((store / "files/md5").glob("[0-9a-f][0-9a-f]/*"))
    named = {file.parent.name + file.name: file for file in files if file.is_file()}
    return {name: file for name, file in named.items() if OBJECT.fullmatch(name)}


def is_broken_link(file: Path) -> bool:
    """Whether a file is a link to an object of a cache that is not there."""
    if not file.is_symlink() or file.exists():
        return False
    target = file.readlink()
    return bool(OBJECT.fullmatch(target.parent.name + target.name))


def damaged_runs(store: Path) -> list[Path]:
    """The damaged entries of a run cache, and empty folders, at which DVC fails."""
    from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
    from dvc.utils import dict_sha256
    from voluptuous import Invalid

    def is_sound(file: Path) -> bool:
        sizes = ("size", "nfiles")  # are in an entry, but not in the name of its file
        try:
            entry = parse_yaml(file)
            COMPILED_LOCK_FILE_STAGE_SCHEMA(entry)
            outs = entry.get("outs", [])
            key = entry | {"outs": [out["path"] for out in outs]}
            is_whole = file.read_bytes().endswith(b"\n") and all(
                "size" in out and ("nfiles" in out or not out["md5"].endswith(".dir")) for out in outs
            )
        except (Invalid, KeyError, TypeError, ValueError, OSError):
            return False
        named = dict_sha256(key, exclude=sizes), dict_sha256(entry, exclude=sizes)
        return is_whole and bool(named == (file.parent.name, file.name))

    folders = [folder for folder in sorted(store.glob("runs/*/*")) if folder.is_dir()]
    files = [file for folder in folders for file in sorted(folder.iterdir()) if not file.name.endswith(TEMPORARY)]
    return [folder for folder in folders if not any(folder.iterdir())] + [file for file in files if not is_sound(file)]


class Digest(NamedTuple):
    """MD5 and bytes of a file; `error` says why it could not be read."""

    md5: str
    size: int
    error: str = ""


def digest_files(files: Iterable[Path], description: str) -> dict[Path, Digest]:
    """The digests of files that exist, computed on all cores; links to the same content are read once."""
    states = {file: file.stat() for file in files if file.exists()}
    distinct = {(state.st_dev, state.st_ino): file for file, state in states.items()}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        read = progress(threads.map(_digest, distinct.values()), description, total=len(distinct))
        digests = dict(zip(distinct, read, strict=True))
    return {file: digests[state.st_dev, state.st_ino] for file, state in states.items()}


def _digest(file: Path) -> Digest:
    try:
        with file.open("rb", buffering=0) as stream:
            digest = hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False))
            return Digest(digest.hexdigest(), stream.tell())
    except OSError as error:
        return Digest("", 0, error.strerror or str(error))


# What killed commands and full disks leave: DVC's locks and temporary files, scratch folders, cut modules.

RWLOCK = "rwlock"  # in which DVC notes who reads and writes what


class Leftover(NamedTuple):
    file: Path
    problem: str
    clear: Callable[[], object]


def leftovers(project: Project) -> Iterator[Leftover]:
    rwlock = project.temporary / RWLOCK
    if rwlock.exists() and ((named := _named(rwlock)) is None or (named and not _living(named, rwlock))):
        yield Leftover(rwlock, "names no process that runs", lambda: rwlock.write_text("{}", encoding="utf-8"))
    if project.cache.is_relative_to(project.root):  # else it may be that of other projects, too
        for pattern in (f"files/md5/*/*{TEMPORARY}", f"runs/*/*/*{TEMPORARY}"):
            for file in sorted(project.cache.glob(pattern)):
                yield Leftover(file, "was left by an interrupted command", file.unlink)
    outputs = {project.root / path for stage in project.outputs.values() for path in stage}
    places = {project.root, *outputs, *(output.parent for output in outputs)}
    folders = sorted(folder for place in places for folder in place.glob(f"{SCRATCH}/*") if folder.name.isdigit())
    for folder in folders:
        if folder.is_dir() and not is_alive(int(folder.name), folder.stat().st_mtime):
            yield Leftover(folder, "was left by a stage that was ended", partial(discard_scratch, folder))
    for file in sorted(file for place in places for file in place.glob(f".*{TEMPORARY}")):
        yield Leftover(file, "was left by an interrupted command", file.unlink)
    for file in sorted((project.root / "stages").rglob(f"__pycache__/*.{sys.implementation.cache_tag}.pyc")):
        if _is_cut(file):
            yield Leftover(file, "was cut, as on a full disk: Python fails at it", file.unlink)


def _is_cut(module: Path) -> bool:
    """Whether a compiled module is not whole behind its header of 16 bytes, at which Python ends in an EOFError."""
    try:
        marshal.loads(module.read_bytes()[16:])
    except (EOFError, ValueError, TypeError):
        return True
    return False


def running(project: Project) -> tuple[Path, str] | None:
    """A process that reads or writes in the project or in the folder of an experiment, and DVC's file that names it."""
    for file in (project.temporary / RWLOCK, *project.temporary.glob(f"exps/*/*/.dvc/tmp/{RWLOCK}")):
        if file.exists() and (holders := _living(_named(file) or [], file)):
            return file, f"process {holders[0]['pid']} ({holders[0]['cmd']})"
    return None


def _named(rwlock: Path) -> list[dict[str, Any]] | None:
    """The processes that a file names; None where it is damaged."""
    from dvc.rwlock import SCHEMA
    from voluptuous import Invalid

    try:
        content: dict[str, Any] = json.loads(rwlock.read_bytes())
        SCHEMA(content)
    except (Invalid, ValueError, RecursionError):
        return None
    readers = [holder for holders in content.get("read", {}).values() for holder in holders]
    return [*content.get("write", {}).values(), *readers]


def _living(named: list[dict[str, Any]], rwlock: Path) -> list[dict[str, Any]]:
    return [holder for holder in named if is_alive(holder["pid"], rwlock.stat().st_mtime)]


@contextmanager
def exclusive(project: Project) -> Iterator[None]:
    """Hold DVC's lock and those of all stages. Raises ValueError where a command or a stage runs."""
    locks = sorted((project.root / SCRATCH / "locks").glob("*"))
    with ExitStack() as held:
        for file in (project.temporary / "lock", project.temporary / f"{RWLOCK}.lock", *locks):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(file.open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{file}: held by a running command: wait for its end, or end it") from error
        if found := running(project):
            raise ValueError(f"{found[0]}: {found[1]} runs: wait for its end, or end it")
        yield
