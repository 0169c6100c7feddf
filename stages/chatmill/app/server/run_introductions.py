"""What a DVC run says of itself: the prompts of its own card or test set, from git and DVC's cache."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from chatmill.app.introduction import CARD, TEST_SET, Introduction, data_prompts, introduce, read_card
from chatmill.app.named_models import MODEL_FOLDERS, NO_EXPORT_FILE, WORKSPACE
from chatmill.app.runs.git_runs import contents_of, read_revisions
from chatmill.app.runs.rows import RunFiles

OUTPUTS = MODEL_FOLDERS[-1].parent
cached_prompts = lru_cache(maxsize=64)(data_prompts)  # the name of a file in DVC's cache stands for its content


def introduce_named_run(name: str, folder: Path, *, generated_only: bool) -> Introduction:
    """The prompts of the run that an experiment's name, a branch, tag or commit means in the folder's repository."""
    from dvc.repo import Repo  # slow to import

    if name == WORKSPACE:
        run: dict[str, Any] = {"rev": name, "outs": {}}
    else:
        with Repo(str(folder), rev=name) as repo:
            revision = str(repo.get_rev())
        run = {"rev": revision, "outs": read_revisions(folder, [revision])[revision].get("outs", {})}
    return introduce_run(run, folder, RunFiles(folder), generated_only=generated_only)


def introduce_run(run: dict[str, Any], folder: Path, files: RunFiles, *, generated_only: bool) -> Introduction:
    """The prompts of a run with `rev` and `outs`, found as for its folder; none where they are not on this machine.

    It has no title, as a run is called by its own name.
    """
    model = next((output for output in MODEL_FOLDERS if _has_model(files.files(run, output))), None)
    if model is None:
        return Introduction()
    if run["rev"] == WORKSPACE:
        return introduce(folder / model, generated_only=generated_only)._replace(title=None)
    above = [f"{run['rev']}:./{(parent / CARD).as_posix()}" for parent in list(model.parents)[:2]]
    own = files.files(run, model).get(CARD)
    cards = [own.read_bytes()] if own else []
    with suppress(ValueError):  # without git, which DVC does not need
        cards += contents_of(folder, above)
    for card in filter(None, map(read_card, cards)):
        return Introduction(prompts=card.prompts)
    test_set = files.file(run, OUTPUTS / TEST_SET)
    return Introduction(prompts=cached_prompts(test_set, generated_only=generated_only))


def _has_model(files: dict[str, Path]) -> bool:
    return bool(files) and NO_EXPORT_FILE not in files
