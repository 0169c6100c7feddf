"""Compare the exports of external tokenizers with the libraries that the tokenizers were made for, id by id.

    python tests/benchmarks/external_tokenizers.py [--tokenizers FOLDER] [--texts FOLDER] [--only NAME ...] [--limit N]

The texts are 30,000, always the same ones: real ones from FOLDER, code, and generated ones, 2,000 of them around the
tokenizer's own control tokens (tests/support/hard_texts.py). Each original is opened in its own library from its own
file (tests/support/original_tokenizers.py). Every reader is the program that the export is for:

    tokenizer.json                  `tokenizers`, which finds control tokens in text
    tokenizer.pkl, .tiktoken        tiktoken with allowed_special="all", which does too
    tokenizer.model                 sentencepiece
    tokenizer.bin                   chatmill, memory-mapped
    tokenizer.llama2c.bin           an engine in C that merges by score, where that is called exact
    loaded                          `chatmill.tokenizer.load` of the original file

Readers that find control tokens are compared with the original that finds them; if it never does (sentencepiece), on
texts without their names. The other readers are compared with the original told to take such names for text, without
texts in which it finds one even so, or a token that is not special there and is a control token here. A loaded
tokenizer leaves out the space before a text, NFC, and U+2581 as a space: it is given the space, and texts that the
others do not change. Exit status 1: a file that formats.json calls exact, or the loaded tokenizer, gives other ids.
"""

import argparse
import os
import shutil
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, get_args

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))


from export_readers import open_readers

from chatmill.tokenizer.exporting.exports import ExportFormat, export_all
from chatmill.tokenizer.formats.tokenizer_loading import load, read_vocabulary
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from support.external_ranks import BUILDERS
from support.hard_texts import CONTROL, control_texts, make_texts
from support.original_tokenizers import LLAMA3, LLAMA3_SPECIAL, Encode, Original, open_original

FILES = ("*tokenizer.json", "tekken*.json", "*.tiktoken", "*.model", "*.model.v*", "tokenizer.bin")
FINDS_CONTROLS = ("tokenizer.json", "tokenizer.pkl", "tokenizer.tiktoken")
METASPACE = "\u2581"
SHOWN = 12  # ids of an example, from the first that differs


def find_originals(folder: Path, scratch: Path) -> dict[str, Path]:
    """Every tokenizer's file in a folder, by name; files with other names are copied, and conversions made."""
    found: dict[str, Path] = {}
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        name = str(file.relative_to(folder))
        if file.name.endswith(("vocab.json", "vocab.txt")) or file.name == "encoder.json":
            found[name] = _with_merges(file, scratch / name)
        elif any(file.match(pattern) for pattern in FILES):
            found[name] = file
    if "llama3/tokenizer.model" in found:
        found["llama3 as tokenizer.json"] = scratch / "llama3-json" / "tokenizer.json"
        _convert_ranks(found["llama3/tokenizer.model"], found["llama3 as tokenizer.json"])
    return found


def _with_merges(vocabulary: Path, copy: Path) -> Path:
    """The file under the name by which programs know it, with its merges beside it."""
    merges = vocabulary.with_name(vocabulary.name.replace("vocab.json", "merges.txt"))
    if vocabulary.name in ("encoder.json", "vocab.json") or merges == vocabulary or not merges.exists():
        return vocabulary
    copy.mkdir(parents=True)
    shutil.copyfile(merges, copy / "merges.txt")
    return Path(shutil.copyfile(vocabulary, copy / "vocab.json"))


def _convert_ranks(file: Path, out: Path) -> None:
    """Llama 3's tokenizer.json, made as transformers makes it: with every split of every token as a merge."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    out.parent.mkdir()
    TikTokenConverter(str(file), LLAMA3, extra_special_tokens=LLAMA3_SPECIAL).converted().save(str(out))


class Comparison(NamedTuple):
    """What one reader gave."""

    reader: str
    called: str  # what formats.json says: exact or not; or why there is no file
    compared: int = 0
    left_out: int = 0
    differing: int = 0
    by_category: str = ""
    example: str = ""

    @property
    def wrong(self) -> bool:
        """Whether ids differ that should not."""
        return self.called == "exact" and self.differing > 0


class Result(NamedTuple):
    """What became of one tokenizer."""

    name: str
    library: str
    notes: list[str]
    comparisons: list[Comparison]
    seconds: float


class Texts(NamedTuple):
    """Texts, the category of each, and the ids that the original gives: all, and without finding control tokens."""

    texts: list[str]
    categories: list[str]
    plain: list[list[int]]
    parsed: list[list[int]] | None


def compare(reader: str, called: str, encode: Encode, original: Original, all_texts: Texts) -> Comparison:
    """The ids of a reader beside those of the original, on the texts that can be compared."""
    finds = reader in FINDS_CONTROLS
    expected = all_texts.parsed if finds and all_texts.parsed else all_texts.plain
    skip = _names_in if finds and not all_texts.parsed else _found_even_so
    rows = [
        row
        for row in zip(all_texts.texts, all_texts.categories, expected, strict=True)
        if (finds and all_texts.parsed) or not skip(original, row[0], row[2])
    ]
    return _compare_rows(reader, called, encode, rows, all_texts)


def _names_in(original: Original, text: str, ids: list[int]) -> bool:
    return any(name in text for name in original.controls)


def _found_even_so(original: Original, text: str, ids: list[int]) -> bool:
    found = set(ids)
    return any(i in found and name in text for name, i in original.controls.items())


Row = tuple[str, str, list[int]]


def _compare_rows(reader: str, called: str, encode: Encode, rows: list[Row], all_texts: Texts) -> Comparison:
    found = encode([text for text, _, _ in rows])
    wrong = [(*row, ids) for row, ids in zip(rows, found, strict=True) if list(ids) != list(row[2])]
    counts = Counter(category for _, category, _, _ in wrong)
    return Comparison(
        reader,
        called,
        len(rows),
        len(all_texts.texts) - len(rows),
        len(wrong),
        ", ".join(f"{category} {count}" for category, count in counts.most_common()),
        _example(*min(((text, ids, own) for text, _, ids, own in wrong), key=lambda row: len(row[0]))) if wrong else "",
    )


def _example(text: str, expected: list[int], found: list[int]) -> str:
    pairs = zip(expected, found, strict=False)
    start = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(expected), len(found)))
    ids = [f"{list(ids)[start : start + SHOWN]}" for ids in (expected, found)]
    return f"{text[:80]!a}: from id {start}: original {ids[0]}, here {ids[1]}"


def compare_loaded(path: Path, steps: str, original: Original, all_texts: Texts) -> Comparison:
    """The loaded tokenizer; given what the original adds to a text, and no text that the original changes."""
    try:
        loaded = load(path)
    except ValueError as error:
        return Comparison("loaded", f"refused: {_line(error)}")
    space = " " if loaded.leading_space else ""
    rows = [
        (space + text, category, ids)
        for text, category, ids in zip(all_texts.texts, all_texts.categories, all_texts.plain, strict=True)
        if (text or not space)
        and not _found_even_so(original, text, ids)
        and not (METASPACE in text and loaded.vocabulary.spelling == "marked")
        and ('"NFC"' not in steps or unicodedata.is_normalized("NFC", text))
    ]
    return _compare_rows("loaded", "exact", loaded.encode, rows, all_texts)


def run_one(name: str, path: Path, folder: Path | None, limit: int | None, scratch: Path) -> Result:
    """Export one tokenizer and compare all that reads it with the original."""
    start, notes, library, original = perf_counter(), [], "", None
    scratch = Path(tempfile.mkdtemp(dir=scratch))
    try:
        original = open_original(path, scratch)
        library = original.library
    except Exception as error:  # libraries raise all kinds
        notes.append(f"the original library refuses it: {_line(error)}")
    try:
        vocabulary = read_vocabulary(path)
        write_folder(vocabulary, scratch / "source")
        formats = export_all(get_args(ExportFormat), scratch / "source", vocabulary, scratch / "out")
    except ValueError as error:
        return Result(name, library, [*notes, f"refused: {_line(error)}"], [], perf_counter() - start)
    except Exception as error:  # a fault of the export
        failed = Comparison("export", "exact", differing=1, example=f"it fails: {_line(error)}")
        return Result(name, library, notes, [failed], perf_counter() - start)
    notes += [f"no {format}: {entry['reason']}" for format, entry in formats.items() if "files" not in entry]
    called = {
        file: "exact" if entry.get("exact") else "not exact"
        for entry in formats.values()
        for file in entry.get("files", [])
    }
    comparisons = []
    if original is not None:
        all_texts = make_all_texts(original, folder, limit)
        comparisons = list(compare_all(path, scratch, vocabulary, called, original, all_texts))
    shutil.rmtree(scratch)
    return Result(name, library, notes, comparisons, perf_counter() - start)


def compare_all(
    path: Path, scratch: Path, vocabulary: Vocabulary, called: dict[str, str], original: Original, all_texts: Texts
) -> Iterator[Comparison]:
    """What each reader of the export gives, and the loaded tokenizer."""
    held = {name: i for name, i in original.user_defined.items() if name in vocabulary.special}
    as_text = replace(original, controls=original.controls | held)
    exact = {file for file, word in called.items() if word == "exact"}
    for reader, opened in open_readers(scratch / "out", vocabulary, exact, scratch).items():
        try:
            other = original if reader in FINDS_CONTROLS else as_text
            yield compare(reader, called[reader], opened(), other, all_texts)
        except Exception as error:  # libraries raise all kinds
            yield Comparison(reader, called[reader], differing=1, example=f"its reader fails: {_line(error)}")
    yield compare_loaded(path, vocabulary.steps or "", as_text, all_texts)


def make_all_texts(original: Original, folder: Path | None, limit: int | None) -> Texts:
    """The texts with the ids of the original; with a limit, the first of each category."""
    by_category = make_texts(folder) | {"control": control_texts(original.names)}
    total = sum(map(len, by_category.values()))
    share = 1.0 if limit is None else min(1.0, limit / total)
    rows = [(text, name) for name, texts in by_category.items() for text in texts[: round(share * len(texts))]]
    texts, categories = [text for text, _ in rows], [name for _, name in rows]
    return Texts(texts, categories, original.encode_plain(texts), original.encode and original.encode(texts))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def show(result: Result) -> Iterator[str]:
    """The lines of a tokenizer's table."""
    yield f"\n{result.name} ({result.library or 'no library'}), {result.seconds:.0f} s"
    yield from (f"    {note}" for note in result.notes)
    for one in result.comparisons:
        if not one.compared and not one.differing:
            yield f"    {one.reader:22} {one.called}"
            continue
        counts = f"{one.compared:7,} texts, {one.left_out:5,} left out, {one.differing:6,} differ"
        counts += " WRONG" if one.wrong else ""
        yield f"    {one.reader:22} {one.called:10} {counts} {one.by_category}".rstrip()
        if one.example:
            yield f"        {one.example}"


def build_small(folder: Path) -> Path:
    """A small tokenizer of every kind, each in a folder of its own; that of Whisper's publisher is known by name."""
    for name, build in BUILDERS.items():
        kind = {"empty_token": "whisper_tiktoken"}.get(name, name)
        (folder / kind).mkdir(parents=True)
        build(folder / kind)
    return folder


def main(options: argparse.Namespace) -> int:
    """Print what became of every tokenizer; return the exit status."""
    counts = {name: len(texts) for name, texts in make_texts(options.texts).items()} | {"control": CONTROL}
    print(f"{sum(counts.values()):,} texts:", ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    status = 0
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        scratch = Path(folder)
        originals = find_originals(options.tokenizers or build_small(scratch / "small"), scratch)
        chosen = {
            name: path for name, path in originals.items() if not options.only or any(o in name for o in options.only)
        }
        arguments = (options.texts, options.limit, scratch)
        runs = [pool.submit(run_one, name, path, *arguments) for name, path in chosen.items()]
        for run in as_completed(runs):
            print(*show(run.result()), sep="\n", flush=True)
            status |= any(one.wrong for one in run.result().comparisons)
    return status


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokenizers", type=Path, metavar="FOLDER", help="published ones; default: a small one of each kind"
    )
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="real texts, as in tests/support/hard_texts.py")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="tokenizers with one of these in their names")
    parser.add_argument("--limit", type=int, metavar="N", help="about so many texts")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    sys.exit(main(parser.parse_args()))
