"""What commands are given: texts and conversations in any of the forms that are read, and models by their names.

A conversation is read from ChatML, `<|im_start|>user …`; from a record, `{"text": "<|im_start|>user …"}`; and from
`{"messages": [{"role": …, "content": …}]}`, or that list alone. In a file each line may be a conversation. One whose
record says which messages are trained remains a Record, and so does a document of the pipeline.
"""

import io
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from chatmill.conversation import BOS, IM_END, IM_START, Conversation, Record, is_document, parse, unescape
from chatmill.datasets.formats.json_document import values
from chatmill.inference.model_loading import LoadedModel, load_model
from chatmill.pipeline.processes import USER_ERRORS, error_line
from chatmill.report.markup import get_nested

TextOrConversation = str | Conversation | Record
MAX_INPUT_BYTES = 16_000_000  # of a text, or of a line of a file
MAX_TEXT_CHARACTERS = 1_000_000  # of a plain text that is shown token by token


def parse_input(content: bytes, number: int, name: str) -> TextOrConversation:
    """Conversation `number`, from 1, of those in a text; the text itself where it has none. Raises ValueError."""
    text = _decoded(content, name)
    if _is_json_of_conversations(text):
        return _select(values(Path(name), io.BytesIO(content), MAX_INPUT_BYTES), number, name)
    if number != 1:
        raise ValueError(f"{name}: no conversation {number}: the input is one text")
    return _parse_entry(name, text)


def read_input_file(file: Path, number: int) -> TextOrConversation:
    """Conversation `number`, from 1, of a .json or .jsonl file, which may be compressed; else the file as one input.

    Raises ValueError with file and line.
    """
    from chatmill.datasets.formats.row_readers import open_decompressed  # zstandard: 24 MB, which a chat does not need

    with open_decompressed(file) as stream:
        if {".json", ".jsonl"} & set(file.suffixes):
            return _select(values(file, stream, MAX_INPUT_BYTES), number, str(file))
        return parse_input(stream.read(MAX_INPUT_BYTES + 1), number, str(file))


def iter_inputs(file: Path) -> Iterator[tuple[str, TextOrConversation]]:
    """Place and content of each entry of a .json or .jsonl file, which may be compressed; any other is one text.

    Raises ValueError with file and line.
    """
    from chatmill.datasets.formats.row_readers import open_decompressed  # as above

    with open_decompressed(file) as stream:
        if {".json", ".jsonl"} & set(file.suffixes):
            entries = _entries(values(file, stream, MAX_INPUT_BYTES))
        else:
            entries = iter([(str(file), _decoded(stream.read(), str(file), max_bytes=inf))])
        for place, entry in entries:
            yield place, _parse_entry(place, entry, max_characters=inf)


def text_or_messages(record: Record) -> str | Conversation:
    return unescape(record.text) if is_document(record.text) else parse(record.text)


def _is_json_of_conversations(text: str) -> bool:
    try:
        first, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return False
    entry = first[0] if isinstance(first, list) and first else first
    return isinstance(entry, dict) and not {"messages", "role", "text"}.isdisjoint(entry)


def _select(values_by_place: Iterable[tuple[str, Any]], number: int, name: str) -> TextOrConversation:
    place, entry = next(islice(_entries(values_by_place), number - 1, None), ("", None))
    if not place:
        raise ValueError(f"{name}: no conversation {number}: the input has fewer")
    return _parse_entry(place, entry)


def _entries(values_by_place: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The entries of each value: those of a list, unless it is a list of messages, or the value itself."""
    for place, value in values_by_place:
        if isinstance(value, list) and not all(isinstance(one, dict) and "role" in one for one in value):
            yield from ((place, entry) for entry in value)
        else:
            yield place, value


def _decoded(content: bytes, name: str, max_bytes: float = MAX_INPUT_BYTES) -> str:
    """The text, without a byte order mark. Raises ValueError for too many bytes, or with the place of a wrong one."""
    if len(content) > max_bytes:
        raise ValueError(f"{name}: over {max_bytes:,} bytes: shorten it")
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}: save it as UTF-8") from error


def _parse_entry(place: str, content: Any, max_characters: float = MAX_TEXT_CHARACTERS) -> TextOrConversation:
    with named_errors(place):
        if isinstance(content, dict) and isinstance(text := content.get("text"), str):
            if text.startswith(IM_START) and content.get("train") is not None:
                parse(text)
                return Record("", "", text, train=content["train"])
            if {"source", "group"} <= content.keys() and is_document(text):
                return Record("", "", text)
            content = text
        if isinstance(content, list):
            content = {"messages": content}
        if not isinstance(content, str):
            from chatmill.datasets.formats import chats  # as above

            return chats.from_messages(content)
        rendered = content.removeprefix(BOS)
        if rendered.startswith(IM_START):
            return parse(f"{rendered}\n" if rendered.endswith(IM_END) else rendered)
        if not 0 < len(content) <= max_characters:
            raise ValueError(f"expected a text of 1 to {MAX_TEXT_CHARACTERS:,} characters, got {len(content):,}")
        return content


# Prompts in files, as the options of several commands name them.

STDIN = "-"
PROMPT_FILE_HELP = "append the text of a file, or with - of stdin, to each prompt; alone it is the prompt"


def join_prompt(prompt: str | None, appended: str | None) -> str:
    """A prompt, and on the lines after it the text of a file; each may be missing."""
    parts = [part for part in (prompt, appended) if part is not None]
    return "\n".join(part.strip("\n").rstrip() for part in parts).strip("\n")


def read_text(file: str) -> str:
    """The text of a UTF-8 file, or of standard input if it is -. Raises ValueError for what `_decoded` refuses."""
    if file == STDIN:
        content, name = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1), "standard input"
    else:
        with Path(file).open("rb") as stream:
            content, name = stream.read(MAX_INPUT_BYTES + 1), file
    return _decoded(content, name)


# What is told of a model before the first message.

MAX_PROMPT, MAX_PROMPTS = 200, 3  # characters of a prompt, and how many are offered
MAX_BYTES, MAX_NESTED, NESTED_LISTS = 1 << 20, 5000, b"- - - - "  # of a file; a deeper level has a longer indent
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HEAD, _SOURCE = re.compile(rb"---\n(.*?\n)---\n", re.DOTALL), re.compile(r"^\| (\S.*?) \| ([\d,]+) \| [\d,]+ \|", re.M)


def introduce(path: Path, loaded: LoadedModel) -> dict[str, Any]:
    """What a model is and was trained on, as `about`, and `prompts` to try; what no file tells is left out.

    The files are its config.json, its card, README.md, as hubs have it, and in a project the metrics and samples of
    the same tokenizer.
    """
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    config, card = parse_mapping(_content(folder / "config.json")), _content(folder / "README.md")
    head = parse_mapping(found[1]) if (found := _HEAD.match(card)) else {}
    sources = [f"{name} ({count} messages)" for name, count in _SOURCE.findall(card.decode("utf-8", "replace"))]
    sources = sources or [name for name in _list(head.get("datasets")) if isinstance(name, str)]
    prompts = [get_nested(one, "text") or _first_message(one) for one in _list(head.get("widget"))]
    for data in folder.parents[:2]:
        mix, evaluation = (parse_mapping(_content(data / f"metrics/{name}.json")) for name in ("mix", "evaluate"))
        if get_nested(evaluation, "tokenizer", "fingerprint") == loaded.tokenizer.fingerprint:
            read = get_nested(mix, "read", default={}).items()
            kept = sorted(((get_nested(counts, "messages", "kept"), name) for name, counts in read), reverse=True)
            sources = [f"{name} ({count:,} messages)" for count, name in kept]
            prompts = sample_prompts(_content(data / "samples.jsonl"))
    layers, width = (config.get(key) for key in ("num_hidden_layers", "hidden_size"))
    shape = f"{layers} layers of {width} channels, " if layers and width else ""
    size = f"{loaded.engine.num_bytes / 1e6:,.1f} MB, a context of {loaded.engine.context:,} tokens"
    steps = get_nested(config, "chatmill", "steps")
    duration = f"for {steps:,} steps " if isinstance(steps, int) else ""
    texts = f"on {', '.join(sources)}" if sources else "on data of which its files do not tell"
    fitting = [one for one in prompts if isinstance(one, str) and 0 < len(one) <= MAX_PROMPT]
    return {"about": f"{shape}{size}. Trained {duration}{texts}.", "prompts": fitting[:MAX_PROMPTS]}


def sample_prompts(samples: bytes) -> list[str]:
    """Prompts from all over the samples of evaluate to which a model gave a complete answer, and gave it once."""
    rows = [parse_mapping(line) for line in samples.splitlines()]
    fixed = [row for row in rows if "true" not in row] or [row for row in rows if not row.get("messages_before")]
    given = Counter(str(row.get("answer")) for row in rows)
    found = [str(row["prompt"]) for row in fixed if row.get("stopped") and given[str(row["answer"])] == 1]
    return found[:: max(1, len(found) // MAX_PROMPTS)]


def _first_message(widget: Any) -> Any:
    return next((get_nested(one, "content") for one in _list(get_nested(widget, "messages"))), None)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() and file.stat().st_size <= MAX_BYTES else b""


def parse_mapping(content: bytes) -> dict[str, Any]:
    """The keys and values of a YAML or JSON file; none where it has no such content, or might be nested very deeply."""
    if len(content) > MAX_BYTES or content.count(b"[") + content.count(b"{") > MAX_NESTED or NESTED_LISTS in content:
        return {}  # libyaml has no limit: it would use up the stack, and end the server
    try:
        found = json.loads(content) if content.startswith(b"{") else yaml.load(content, LOADER)  # safe
    except (ValueError, RecursionError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


# Models of DVC runs: an experiment, branch, tag or commit is read without a change to the workspace.

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


def load_named(
    name: str | Path,
    device: str = "auto",
    threads: int | None = None,
    *,
    tokenizer: Path | None = None,
    **options: Any,
) -> LoadedModel:
    """The model of a path or a DVC run, as `load_model` loads it. Raises ValueError that names the file or the model.

    The files are read by their absolute paths, which no other part of a message looks like.
    """
    with fetch_model(name) as path:
        model = path.absolute()
        places = {str(model): str(Path(name))}
        if tokenizer:
            places[str(tokenizer.absolute())] = str(tokenizer)
        try:
            return load_model(model, device, threads, tokenizer=tokenizer and tokenizer.absolute(), **options)
        except USER_ERRORS as error:
            message = error_line(error)
            prefix = "" if any(place in message for place in places) else f"{name}: "
            folder = Path(name).parent  # of the files that describe a model, where that is one file
            places[f"{model.parent}/"] = "" if folder == Path() else f"{folder}/"
            for place, given in places.items():
                message = message.replace(place, given)
            raise ValueError(prefix + message) from error
