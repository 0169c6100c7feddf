"""A DVC project as files on this machine, without DVC's own checksums; and what killed commands leave in it."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    stage: str | None = None  # that made it; None for an input
    cached: bool = True


class Project:
    """A DVC project on this machine."""

    def __init__(self, repo: Any) -> None:
        """Raises ValueError where dvc.yaml cannot be read; dvc.lock is not read."""
        from dvc.parsing import DataResolver
        from dvc.schema import COMPILED_MULTI_STAGE_SCHEMA

        self.root, self.cache = Path(repo.root_dir), Path(repo.cache.legacy.path)
        self.databases = [Path(repo.site_cache_dir) / name for name in ("hashes", "index")]  # of what DVC has read
        urls = {name: settings["url"] for name, settings in repo.config["remote"].items()}
        self.remotes = {name: Path(url) for name, url in urls.items() if "://" not in url and Path(url).is_dir()}
        self.unchecked_remotes = {name: url for name, url in urls.items() if name not in self.remotes}
        file = self.root / "dvc.yaml"
        content = file.read_bytes()
        problem = yaml_problem(content, COMPILED_MULTI_STAGE_SCHEMA)
        if problem or not (pipeline := parse_yaml(content, file)).get("stages"):
            raise ValueError(f"{file}: {problem or 'has no stages'}: correct it, or restore it by git")
        stages = DataResolver(repo, repo.root_dir, pipeline).resolve()["stages"]
        self.commands = {name: stage["cmd"] for name, stage in stages.items()}
        self._is_cached = {name: _outputs(stage) for name, stage in stages.items()}
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

    def outputs(self, stage: str, entry: Mapping[str, Any]) -> list[Item]:
        """The outputs in the entry of a stage in dvc.lock."""
        is_cached = self._is_cached.get(stage, {})
        return [Item(path, md5, stage, is_cached.get(path, True)) for path, md5 in md5_by_path(entry, "outs").items()]

    @property
    def output_paths(self) -> set[Path]:
        return {self.root / path for outputs in self._is_cached.values() for path in outputs}

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

    def changed_parameters(self, entry: Mapping[str, Any]) -> Iterator[str]:
        """The parameters that have another value than in the run of an entry of dvc.lock, as FILE: KEY."""
        for file, values in (entry.get("params") or {}).items():
            place = self.root / file
            content = parse_yaml(place.read_bytes(), place) if place.is_file() else {}
            yield from (
                f"{file}: {key}" for key, value in values.items() if get_nested(content, *key.split(".")) != value
            )


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


def _outputs(stage: Mapping[str, Any]) -> dict[str, bool]:
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
                yield Item(path, out.hash_info.value, cached=out.use_cache)


# The files that DVC writes: dvc.lock, lists of folders, cached objects, and the run cache.


def parse_yaml(content: bytes, file: str | Path = LOCK_FILE) -> Any:
    """The content of a YAML file as DVC reads it. Raises ValueError where it cannot be read."""
    from dvc.utils.serialize import ParseError
    from dvc.utils.serialize import parse_yaml as parse

    try:
        return parse(content.decode("utf-8"), file)
    except (ParseError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: is not YAML") from error


def yaml_problem(content: bytes, schema: Callable[[Any], Any]) -> str | None:
    """What is wrong with a YAML file of DVC; None for a sound one."""
    from voluptuous import Invalid

    try:
        schema(parse_yaml(content))
    except ValueError:
        return "is not YAML"
    except Invalid as error:
        return f"is not what DVC reads ({error})"
    return None


def lock_problem(content: bytes) -> str | None:
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA

    return yaml_problem(content, COMPILED_LOCKFILE_SCHEMA) if content.strip(b"\0 \n") else "is empty"


def md5_by_path(entry: Mapping[str, Any], kind: str) -> dict[str, str]:
    """The MD5 of each of the `outs` or `deps` of an entry of dvc.lock."""
    return {one["path"]: one["md5"] for one in entry.get(kind) or [] if "md5" in one}


def listing_bytes(md5s: Mapping[str, str]) -> bytes:
    """The object that DVC stores for a folder: [{"md5": …, "relpath": …}, …]."""
    listed = [{"md5": md5, "relpath": path} for path, md5 in md5s.items()]
    return json.dumps(sorted(listed, key=lambda one: one["relpath"]), sort_keys=True).encode()


def read_listing(file: Path) -> dict[str, str]:
    """The inverse of `listing_bytes`, for a sound object."""
    return {one["relpath"]: one["md5"] for one in json.loads(file.read_bytes())}


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


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
    folders = [folder for folder in sorted(store.glob("runs/*/*")) if folder.is_dir()]
    files = [file for folder in folders for file in sorted(folder.iterdir()) if not file.name.endswith(TEMPORARY)]
    empty = [folder for folder in folders if not any(folder.iterdir())]
    return [*empty, *(file for file in files if not _is_sound_run(file))]


def _is_sound_run(file: Path) -> bool:
    """Whether an entry of the run cache is what its name says, and ends with the sizes, which the name leaves out."""
    from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
    from dvc.utils import dict_sha256

    content = file.read_bytes() if file.is_file() else b""
    if yaml_problem(content, COMPILED_LOCK_FILE_STAGE_SCHEMA) or not content.endswith(b"\n"):
        return False
    entry = parse_yaml(content)
    last = (entry.get("outs") or [{}])[-1]
    has_sizes = "size" in last and ("nfiles" in last or not last.get("md5", "").endswith(".dir"))
    return has_sizes and bool(dict_sha256(entry, exclude=["size", "nfiles"]) == file.name)


def digest_files(files: Iterable[Path], description: str) -> dict[Path, str]:
    """The MD5 of each file that exists, computed on all cores; links to the same content are read once."""
    states = {file: file.stat() for file in files if file.exists()}
    distinct = {(state.st_dev, state.st_ino): file for file, state in states.items()}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        read = progress(threads.map(_digest, distinct.values()), description, total=len(distinct))
        digests = dict(zip(distinct, read, strict=True))
    return {file: digests[state.st_dev, state.st_ino] for file, state in states.items()}


def _digest(file: Path) -> str:
    """The MD5 of a file; empty where it cannot be read."""
    with suppress(OSError), file.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    return ""


# What killed commands and full disks leave: DVC's locks and temporary files, and scratch folders.

RWLOCK = "rwlock"  # in which DVC notes who reads and writes what
INTERRUPTED = "was left by an interrupted command"


def leftovers(project: Project) -> Iterator[tuple[Path, str, Callable[[], object]]]:
    """Each file, what is wrong with it, and what clears it."""
    rwlock = project.temporary / RWLOCK
    if rwlock.exists() and not _is_sound_rwlock(rwlock.read_bytes()):
        yield (rwlock, "is not what DVC writes", rwlock.unlink)
    if project.cache.is_relative_to(project.root):  # else it may be that of other projects, too
        for pattern in (f"files/md5/*/*{TEMPORARY}", f"runs/*/*/*{TEMPORARY}"):
            for file in sorted(project.cache.glob(pattern)):
                yield (file, INTERRUPTED, file.unlink)
    places = {project.root, *project.output_paths, *(output.parent for output in project.output_paths)}
    for folder in sorted(folder for place in places for folder in place.glob(f"{SCRATCH}/[0-9]*")):
        if folder.name.isdigit() and folder.is_dir() and not is_alive(int(folder.name), folder.stat().st_mtime):
            yield (folder, "was left by a stage that was ended", partial(discard_scratch, folder))
    for file in sorted(file for place in places for file in place.glob(f".*{TEMPORARY}")):
        yield (file, INTERRUPTED, file.unlink)


def _is_sound_rwlock(content: bytes) -> bool:
    """Whether DVC reads the file; of the processes that it names, DVC itself forgets those that have ended."""
    from dvc.rwlock import SCHEMA
    from voluptuous import Invalid

    try:
        SCHEMA(json.loads(content))
    except (Invalid, ValueError, RecursionError):
        return False
    return True


@contextmanager
def exclusive(project: Project) -> Iterator[None]:
    """Hold DVC's locks and those of all stages, also of experiments. Raises ValueError where one is held."""
    folders = [project.root, *project.temporary.glob("exps/*/*/")]
    patterns = (".dvc/tmp/lock", f".dvc/tmp/{RWLOCK}.lock", f"{SCRATCH}/locks/*")
    own = [project.temporary / "lock", project.temporary / f"{RWLOCK}.lock"]
    others = sorted(file for folder in folders for pattern in patterns for file in folder.glob(pattern))
    with ExitStack() as held:
        for file in dict.fromkeys([*own, *others]):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(file.open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{file}: held by a running command: wait for its end, or end it") from error
        yield
