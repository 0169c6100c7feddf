"""The decorator `stage`, with which each stage script starts.

    @stage
    def main(chat: Path, tokens: Output, *, template: TemplateName) -> None:

The section of params.yaml has the name of the script; chatmill.pipeline.signatures describes the parameters of `main`.
"""

import atexit
import gc
import os
import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path

from pydantic import ConfigDict, validate_call

from chatmill.pipeline.outputs import atomic_output, explain_full_disk, format_size, stage_lock
from chatmill.pipeline.params_file import PARAMS_FILE, check_params, read_params, sections_of
from chatmill.pipeline.processes import die_with_parent, error_line, hide_scripts
from chatmill.pipeline.progress import duration
from chatmill.pipeline.signatures import MODEL_KEYWORD, parse_files, signature_of

Main = Callable[..., None]
_on_success: list[list[Callable[[], None]]] = []  # of the stage that runs in this process, if any


def stage(main: Main) -> Main:
    """Check the arguments of `main`; run it as a stage if its script is the program."""
    checked = validate_call(config=ConfigDict(extra="forbid"))(main)
    if main.__module__ == "__main__":
        atexit.register(gc.freeze)  # else what PyTorch imported is searched for garbage at exit, for half a second
        sys.exit(_run(main, checked))
    return checked


# In several processes most errors are those of all: the first tells it, and torchrun ends the others while they wait.
SECONDS_FOR_THE_FIRST = 6


class RunInstead(Exception):
    """Raised by a `main` to have `run`, which gives an exit code, called once its lock and outputs are released."""

    def __init__(self, run: Callable[[], int]) -> None:
        super().__init__()
        self.run = run


def on_success(callback: Callable[[], None]) -> None:
    """Run a callback once the stage has succeeded and its outputs are in place; outside a stage, run it at once."""
    if _on_success:
        _on_success[-1].append(callback)
    else:
        callback()


def _run(main: Main, checked: Main) -> int:
    script = Path(sys.argv[0])
    die_with_parent()
    hide_scripts()
    try:
        signature = signature_of(main)
        params = read_params()
        check_params(params, script.stem, signature)
        files = parse_files(main, signature, script.stem, sys.argv[1:])
        name = script.stem
        if signature.foreach:
            name += f".{files[signature.foreach].stem}"
        section = sections_of(params, script.stem, signature).get(name)
        if section is None:
            raise ValueError(f"{PARAMS_FILE}: missing section {name}")
        others = {name: params.get(name) or {} for name in signature.other_sections}
        others |= {name: (params.get(other) or {}).get(name) for name, other in signature.other_keys.items()}
        outputs = {name: file for name, file in files.items() if signature.files[name]}
        shown = name.replace(".", "@", 1)
        if "RANK" not in os.environ:
            purpose = str(main.__globals__["__doc__"]).strip().splitlines()[0].rstrip(".")
            _say(f"{shown}: {purpose[0].lower()}{purpose[1:]}")
        _on_success.append([])
        with ExitStack() as resources:
            if os.environ.get("RANK", "0") == "0":  # of the processes of torchrun only the first writes
                resources.enter_context(stage_lock(script.stem, [*outputs.values()]))
                files |= {
                    name: resources.enter_context(atomic_output(file, grows=name in signature.growing))
                    for name, file in outputs.items()
                }
                resources.enter_context(explain_full_disk(outputs.values()))
            start = time.monotonic()
            checked(**files, **({MODEL_KEYWORD: section} if signature.takes_model else section), **others)
        for callback in _on_success.pop():
            callback()
        if os.environ.get("RANK", "0") == "0":
            _say(f"{shown}: made {_made(outputs.values())} in {duration(time.monotonic() - start)}")
    except RunInstead as other:
        return other.run()
    except (ValueError, OSError) as error:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(SECONDS_FOR_THE_FIRST)
        print(f"{script.stem}: {error_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


# What a stage says first and last, on stdout among DVC's own lines; stderr has warnings and errors.

_NAMED = 3  # of the outputs, the largest


def _say(line: str) -> None:
    with suppress(OSError):  # nobody may read it
        print(line, flush=True)


def _made(outputs: Collection[Path]) -> str:
    """The largest outputs and their sizes."""
    sizes = {file: sum(one.stat().st_size for one in (file, *file.rglob("*")) if one.is_file()) for file in outputs}
    largest = sorted(filter(sizes.get, sizes), key=lambda file: -sizes[file])[:_NAMED]
    more = f" and {len(sizes) - _NAMED} more" if len(sizes) > _NAMED else ""
    return ", ".join(f"{file} ({format_size(sizes[file])})" for file in largest) + more
