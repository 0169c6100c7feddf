"""Checks of one output: its files in the workspace, and their objects in the cache."""

from pathlib import Path

from chatmill.app.integrity.findings import FETCH, REPAIR, Survey
from chatmill.app.integrity.project import LOCK_FILE, Item, items, listing_bytes, read_listing
from chatmill.app.integrity.stores import is_broken_link

_BROKEN_LINK = "is a link to a missing object"


def check_output(found: Survey, item: Item, stage: str) -> None:
    """Check an output in the workspace and its object in the cache."""
    workspace, state = found.workspace, found.workspace.state(item.path)
    if is_broken_link(found.project.root / item.path):
        found.add(item.path, _BROKEN_LINK, REPAIR)
    elif state is None:
        found.add(item.path, "is missing: not checked out", _remedy_of_missing(found, item))
    elif not workspace.agrees(item):
        _name_changes(found, item, state.md5, stage)
    if item.cached:
        _check_cached(found, item)


def _remedy_of_missing(found: Survey, item: Item) -> str:
    if not item.cached:
        return "run `dvc repro`"
    if _is_cached(found, item):
        return "run `dvc checkout`"
    return "`dvc pull` fetches it, if it was pushed" if item.external else FETCH


def _is_cached(found: Survey, item: Item) -> bool:
    """Whether the cache has a sound copy of an output."""
    return {item.md5, *_members(found, item)} <= found.sound.keys()


def _members(found: Survey, item: Item) -> set[str]:
    """The objects of the files of a folder whose own object is sound."""
    folder = item.md5.endswith(".dir") and item.md5 in found.sound
    return set(read_listing(found.sound[item.md5]).values()) if folder else set()


def _name_changes(found: Survey, item: Item, md5: str, stage: str) -> None:
    """Report a changed output; of a folder whose list of files is known, report each file."""
    actual = found.workspace.md5s(item.path)
    listing = read_listing(found.sound[item.md5]) if md5.endswith(".dir") and item.md5 in found.sound else None
    if item.external:
        remedy = f"`dvc add {item.path}` records it, "  # DVC's checkout removes it, even if there is no other copy
        remedy += (
            f"`dvc checkout --force {item.path}` restores it" if _is_cached(found, item) else "no sound copy is here"
        )
        return found.add(item.path, "is not what its .dvc file says", remedy)
    other = f"it is of another run: {_remedy_of_missing(found, item)}"
    problem = f"is not what {LOCK_FILE} says {stage} wrote"
    if listing is None:
        if "" in actual and actual[""] in found.sound:
            return found.add(item.path, problem, other)
        if "" in actual:
            found.bad_outputs.append(found.project.root / item.path)
        else:
            found.doubtful += found.workspace.files(item.path).values()
        return found.add(item.path, problem, REPAIR)
    for name in sorted(listing.keys() | actual.keys()):
        file = Path(item.path, name)
        if is_broken_link(found.project.root / file):
            found.add(file, _BROKEN_LINK, REPAIR)
        elif name not in actual:
            found.add(file, "is missing", "run `dvc checkout` or `dvc repro`")
        elif name not in listing:
            found.add(file, f"was not written by {stage}", "move it elsewhere: `dvc repro` may remove it")
        elif actual[name] != listing[name] and actual[name] in found.sound:
            found.add(file, problem, other)
        elif actual[name] != listing[name]:
            found.bad_outputs.append(found.project.root / file)
            found.add(file, problem, REPAIR)
    return None


def _check_cached(found: Survey, item: Item) -> None:
    """Report objects that the cache lacks and the workspace has; a damaged one has a finding already."""
    workspace, bad = found.workspace, {one.name for one in found.bad_objects}
    files, actual = workspace.files(item.path), workspace.md5s(item.path)
    for name, md5 in actual.items():
        wanted = md5 == item.md5 if name == "" else workspace.agrees(item) or md5 in _members(found, item)
        if wanted and md5 not in found.sound:
            found.lost[md5] = files[name]
            if md5 not in bad:
                found.add(Path(item.path, name), "is missing in DVC's cache", REPAIR)
    if item.md5.endswith(".dir") and item.md5 not in found.sound and workspace.agrees(item):
        found.lost[item.md5] = listing_bytes(actual)
        if item.md5 not in bad:
            found.add(item.path, "the list of its files is missing in DVC's cache", REPAIR)


def settle_doubts(found: Survey) -> None:
    """Of the files of changed folders whose lists are lost, report those that no sound object or folder has."""
    known, digests = found.sound.keys() | found.lost.keys(), found.workspace.digests
    found.doubtful = [file for file in found.doubtful if file in digests and digests[file].md5 not in known]
    for file in found.doubtful:
        found.add(file, "is not what any known run wrote", REPAIR)


def check_unrecorded(found: Survey) -> None:
    """Without any dvc.lock, report the files of outputs that have another content than in every recorded run."""
    versions: dict[str, dict[str, set[str]]] = {}  # the checksums of each file of each output
    for item in (item for run in found.runs for item in items(run, "outs")):
        listing = {"": item.md5}
        if item.md5.endswith(".dir"):
            listing = read_listing(found.sound[item.md5]) if item.md5 in found.sound else {}
        for name, md5 in listing.items():
            versions.setdefault(item.path, {}).setdefault(name, set()).add(md5)
    for path, names in versions.items():
        actual = found.workspace.md5s(path)
        for name in (name for name, md5s in names.items() if name in actual and actual[name] not in md5s):
            found.bad_outputs.append(found.project.root / path / name)
            found.add(Path(path, name), "is not what any recorded run wrote", REPAIR)
