"""A DVC project as files on this machine: its stages, dvc.lock, cache and remotes, without DVC's own checksums."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.pipeline.progress import progress_bar

LOCK_FILE = "dvc.lock"
_CONFLICT = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
_SIZES = ("size", "nfiles")  # are in an entry, but not in the name of its file in the run cache


@dataclass(frozen=True)
class Item:
    """A file or folder as dvc.lock or a .dvc file describes it."""

    path: str  # relative to the project
    md5: str  # ends with .dir for a folder
    size: int | None = None
    nfiles: int | None = None
    cached: bool = True
    external: bool = False  # of a .dvc file: it cannot be made again


@dataclass(frozen=True)
class Project:
    """The parts of a DVC project that are checked. `commands` and `outputs` are those of dvc.yaml, by stage."""

    root: Path
    cache: Path
    databases: tuple[Path, ...]  # in which DVC notes what it need not read again
    remotes: dict[str, Path]
    unchecked_remotes: dict[str, str]
    commands: dict[str, Any] = field(repr=False)
    outputs: dict[str, dict[str, bool]] = field(repr=False)  # whether the cache has it, by path
    sources: list[Item] = field(repr=False)
    ignore: Any = field(repr=False)

    @property
    def temporary(self) -> Path:
        """The folder of DVC's locks."""
        return self.root / ".dvc/tmp"

    def files(self, path: str) -> dict[str, Path]:
        """The files of a folder that DVC does not ignore, by relative path; those of a file are itself."""
        from dvc.fs import localfs

        place = self.root / path
        if place.is_dir():
            found = map(Path, self.ignore.find(localfs, str(place)))
            return {file.relative_to(place).as_posix(): file for file in found}
        return {"": place} if place.is_file() else {}

    def parameters(self, file: str) -> Any:
        """The content of a file of parameters; empty where there is none."""
        place = self.root / file
        return parse_yaml(place) if place.is_file() else {}

    @property
    def lock(self) -> bytes | None:
        """The text of dvc.lock; None where there is none."""
        file = self.root / LOCK_FILE
        return file.read_bytes() if file.is_file() else None

    @cached_property
    def tracked(self) -> frozenset[str]:
        """The files that git tracks."""
        listed = _git(self.root, "ls-files", "-z")
        return frozenset((listed or b"").decode(errors="surrogateescape").split("\0"))

    @cached_property
    def committed_lock(self) -> bytes | None:
        """dvc.lock as git's HEAD has it, if that is sound."""
        content = _git(self.root, "show", f"HEAD:./{LOCK_FILE}")
        return content if content and lock_problem(content) is None else None


@contextmanager
def open_project(folder: Path) -> Iterator[Project]:
    """The DVC project that a folder lies in; dvc.lock is not read.

    Raises ValueError where there is none, or where dvc.yaml or a .dvc file cannot be read.
    """
    try:
        from dvc.exceptions import DvcException  # here, since every other command works without DVC
        from dvc.repo import Repo
    except ImportError as error:
        raise ValueError("this command requires DVC: pip install dvc") from error
    try:
        with Repo(str(folder)) as repo:
            yield _read(repo)
    except DvcException as error:
        raise ValueError(f"{folder}: {error}") from error


def _read(repo: Any) -> Project:
    from dvc.parsing import DataResolver

    root = Path(repo.root_dir)
    stages = DataResolver(repo, repo.root_dir, _pipeline(root / "dvc.yaml")).resolve()["stages"]
    urls = {name: settings["url"] for name, settings in repo.config["remote"].items()}
    places = {name: Path(url) for name, url in urls.items() if "://" not in url}
    return Project(
        root,
        Path(repo.cache.legacy.path),
        tuple(Path(repo.site_cache_dir) / name for name in ("hashes", "index")),
        {name: place for name, place in places.items() if place.is_dir()},
        {name: url for name, url in urls.items() if not (name in places and places[name].is_dir())},
        {name: stage["cmd"] for name, stage in stages.items()},
        {name: _outputs(stage) for name, stage in stages.items()},
        list(_sources(repo)),
        repo.dvcignore,
    )


def _pipeline(file: Path) -> dict[str, Any]:
    """The content of a dvc.yaml that has stages. Raises ValueError for another one."""
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
    """The outputs of a stage of dvc.yaml, which may be `PATH` or `PATH: {cache: …}`; whether the cache has them."""
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
                yield Item(path, out.hash_info.value, out.meta.size, out.meta.nfiles, out.use_cache, external=True)


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


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
    if _CONFLICT.search(content):
        return "has the markers of a merge conflict"
    try:
        COMPILED_LOCKFILE_SCHEMA(parse_yaml(Path(LOCK_FILE), content))
    except ValueError:
        return "is not YAML"
    except Invalid as error:
        return f"is not what DVC writes ({error})"
    listed = [one for entry in read_lock(content).values() for kind in ("deps", "outs") for one in entry.get(kind, [])]
    unknown = next((one["hash"] for one in listed if one.get("hash", "md5") != "md5"), None)
    return f"names an unknown checksum, {unknown}" if unknown else None


def read_lock(content: bytes) -> dict[str, Any]:
    """The entries of a sound dvc.lock, by stage."""
    return dict(parse_yaml(Path(LOCK_FILE), content).get("stages") or {})


def write_lock(file: Path, entries: dict[str, Any]) -> None:
    """Write dvc.lock as DVC does."""
    from dvc.utils.serialize import dump_yaml

    place = file.with_name(f"{file.name}.tmp")
    dump_yaml(place, {"schema": "2.0", "stages": entries})
    place.replace(file)


def read_run(file: Path) -> dict[str, Any]:
    """An entry of the run cache. Raises ValueError where its content is not that of its name."""
    from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
    from dvc.utils import dict_sha256
    from voluptuous import Invalid

    entry: dict[str, Any] = parse_yaml(file)
    try:
        COMPILED_LOCK_FILE_STAGE_SCHEMA(entry)
        key = entry | {"outs": [out["path"] for out in entry.get("outs", [])]}
    except (Invalid, TypeError) as error:
        raise ValueError(f"{file}: not an entry of the run cache") from error
    if (dict_sha256(key, exclude=_SIZES), dict_sha256(entry, exclude=_SIZES)) != (file.parent.name, file.name):
        raise ValueError(f"{file}: not the entry of its name")
    return entry


def items(entry: dict[str, Any], kind: str) -> list[Item]:
    """The `deps` or `outs` of an entry that DVC 3 wrote."""
    listed = entry.get(kind) or []
    return [
        Item(one["path"], one["md5"], one.get("size"), one.get("nfiles"))
        for one in listed
        if "md5" in one and one.get("hash")
    ]


def listing_bytes(md5_by_path: dict[str, str]) -> bytes:
    """The object that DVC stores for a folder: [{"md5": …, "relpath": …}, …]."""
    listed = [{"md5": md5, "relpath": path} for path, md5 in md5_by_path.items()]
    return json.dumps(sorted(listed, key=lambda one: one["relpath"]), sort_keys=True).encode()


def read_listing(file: Path) -> dict[str, str]:
    """The inverse of `listing_bytes`, for a sound object."""
    return {one["relpath"]: one["md5"] for one in json.loads(file.read_bytes())}


# MD5 of many files, on all cores.

BLOCK = 1 << 20


class Digest(NamedTuple):
    """MD5 and bytes of a file; `error` says why it could not be read."""

    md5: str
    size: int
    error: str = ""


def digest_files(files: Iterable[Path], description: str) -> dict[Path, Digest]:
    """The digests of files that exist; links to the same content are read once."""
    identities: dict[Path, tuple[int, int]] = {}
    sizes: dict[tuple[int, int], tuple[int, Path]] = {}
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        identities[file] = status.st_dev, status.st_ino
        sizes[identities[file]] = status.st_size, file
    largest_first = sorted(sizes.items(), key=lambda one: one[1][0], reverse=True)
    total = sum(size for size, _ in sizes.values())
    with (
        progress_bar(total, description, unit="B", scale=True) as bar,
        ThreadPoolExecutor(os.cpu_count()) as threads,
    ):
        read = threads.map(lambda one: _digest(one[1][1], bar), largest_first)
        digests = dict(zip((identity for identity, _ in largest_first), read, strict=True))
    return {file: digests[identity] for file, identity in identities.items()}


def _digest(file: Path, bar: Any) -> Digest:
    digest, size, block = hashlib.md5(usedforsecurity=False), 0, memoryview(bytearray(BLOCK))
    try:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(block):
                digest.update(block[:count])
                size += count
                bar.update(count)
    except OSError as error:
        return Digest("", size, error.strerror or str(error))
    return Digest(digest.hexdigest(), size)


# The caches and remotes of DVC: objects that are named by the MD5 of their content, and the run cache.

TEMPORARY = ".tmp"  # ends the name of a file that DVC has not finished
_NAME = re.compile(r"[0-9a-f]{32}(\.dir)?")


@dataclass(frozen=True)
class StoredObject:
    """A file of a cache or remote. DVC 2 wrote those that are `legacy`."""

    name: str
    file: Path
    legacy: bool

    def is_sound(self, digest: Digest) -> bool:
        """Whether the content has the checksum that the name says."""
        expected = self.name.removesuffix(".dir")
        if digest.md5 == expected or digest.error or not self.legacy:
            return digest.md5 == expected
        unix = self.file.read_bytes().replace(b"\r\n", b"\n")
        return hashlib.md5(unix, usedforsecurity=False).hexdigest() == expected


def object_file(store: Path, name: str) -> Path:
    return store / "files/md5" / name[:2] / name[2:]


def stored_objects(store: Path) -> Iterator[StoredObject]:
    """The objects of a cache or remote."""
    for folder, legacy in ((store / "files/md5", False), (store, True)):
        for file in sorted(folder.glob("[0-9a-f][0-9a-f]/*")):
            name = file.parent.name + file.name
            if _NAME.fullmatch(name) and file.is_file():
                yield StoredObject(name, file, legacy)


def is_broken_link(file: Path) -> bool:
    """Whether a file is a link to an object of a cache that is not there."""
    if not file.is_symlink() or file.exists():
        return False
    target = file.readlink()
    return bool(_NAME.fullmatch(target.parent.name + target.name))


def temporary_files(store: Path) -> list[Path]:
    """The files of a cache that an interrupted command left."""
    patterns = (f"files/md5/*/*{TEMPORARY}", f"[0-9a-f][0-9a-f]/*{TEMPORARY}", f"runs/*/*/*{TEMPORARY}")
    return [file for pattern in patterns for file in sorted(store.glob(pattern))]


def read_runs(store: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """The sound entries of a run cache, the files of the others, and empty folders, at which DVC fails."""
    folders = [folder for folder in sorted(store.glob("runs/*/*")) if folder.is_dir()]
    entries, broken = [], [folder for folder in folders if not any(folder.iterdir())]
    for file in sorted(store.glob("runs/*/*/*")):
        if file.name.endswith(TEMPORARY):
            continue
        try:
            entries.append(read_run(file))
        except (ValueError, OSError):
            broken.append(file)
    return entries, broken
