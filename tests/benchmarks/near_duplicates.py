"""How many planted near-duplicates mix drops, how many others it drops wrongly, and how fast it is.

    python tests/benchmarks/near_duplicates.py DATA [SEED]

DATA is a folder with published datasets as data/README.md names them (dailydialog, dolly_15k, gsm8k, oasst1). To all
their conversations, changed copies of some are added: inside train, and in train
where the original is in test.
MB/s is of the conversations' text, by the CPU time of a single process, without and with near-duplicates.
"""

import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import mix
from chatmill.conversation import Message, Record, parse, render
from chatmill.datasets.records import records
from chatmill.datasets.repair import SourceParameters, Tally
from chatmill.datasets.split import on_side, question_group
from chatmill.pipeline.manifest import write_file_manifest
from chatmill.record_files import read_records

SOURCES = {
    "dailydialog/dialogues_text.txt": "dailydialog",
    "dolly_15k/databricks-dolly-15k.en.jsonl": "dolly",
    "gsm8k/train.jsonl": "gsm8k",
    "gsm8k/test.jsonl": "gsm8k",
    "oasst1/en-validation.jsonl": "oasst",
    "oasst1/en_100_tree.jsonl": "oasst",
}
PAIRS, OTHERS = 500, 1000  # of each kind
NEGATION = re.compile(r"\b(?:not|no|never)\b|n ?['’] ?t\b", re.IGNORECASE)
OPPOSITES = {"good": "bad", "hot": "cold", "more": "less", "always": "rarely", "up": "down", "before": "after"}
OPPOSITES |= {value: key for key, value in OPPOSITES.items()}

Texts = list[str]  # question, answer, question, answer, …
Change = Callable[[Texts, random.Random], Texts | None]


def texts_of(text: str) -> Texts | None:
    """The messages of a conversation without system message and tools."""
    messages = parse(text)
    if messages[0].role == "system" or any(len(message.parts) > 1 for message in messages):
        return None
    return [message.parts[0].text for message in messages]


def rendered(texts: Texts) -> str:
    """The inverse of `texts_of`."""
    return render([Message.from_text(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)])


def words_of(texts: Texts) -> list[str]:
    """All words, in lower case."""
    return re.findall(r"\w+", " ".join(texts).lower())


def shingles(texts: Texts) -> set[tuple[str, ...]]:
    """Runs of five words."""
    words = words_of(texts)
    return {tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))}


def plain_words(text: str) -> list[int]:
    """The places of words that are no numbers, names or negations."""
    words = text.split(" ")
    places = [
        i for i, word in enumerate(words) if word.isascii() and word.isalpha() and word.islower() and len(word) > 1
    ]
    return [i for i in places if not NEGATION.search(words[i]) and i + 1 < len(words) and words[i + 1] not in "'’"]


def replaced(text: str, count: int, words: Texts, random: random.Random) -> str | None:
    """The text with this many plain words replaced by others."""
    places = plain_words(text)
    if len(places) < count:
        return None
    parts = text.split(" ")
    for place in random.sample(places, count):
        parts[place] = random.choice([word for word in random.sample(words, 3) if word != parts[place]])
    return " ".join(parts)


def alike(words: Texts, texts: Texts, random: random.Random) -> Texts | None:
    """Words are replaced anywhere, while the Jaccard similarity of five-word shingles is at least 0.8."""
    original, changed = shingles(texts), None
    for _ in range(20):
        place = random.choices(range(len(texts)), [len(text) for text in texts])[0]
        text = replaced((changed or texts)[place], 1, words, random)
        if text is None:
            continue
        candidate = [*(changed or texts)[:place], text, *(changed or texts)[place + 1 :]]
        found = shingles(candidate)
        if len(original & found) < 0.8 * len(original | found):
            break
        changed = candidate
    return changed


def word_changed(words: Texts, texts: Texts, random: random.Random) -> Texts | None:
    """A word of the question of a short exchange is replaced."""
    if len(" ".join(texts).split()) > 40 or len(texts[0].split()) < 3:
        return None
    text = replaced(texts[0], 1, words, random)
    return text and [text, *texts[1:]]


def tenth_changed(words: Texts, texts: Texts, random: random.Random) -> Texts | None:
    """A tenth of the words of an answer are replaced."""
    length = len(texts[1].split())
    text = replaced(texts[1], length // 10, words, random) if length >= 10 else None
    return text and [texts[0], text, *texts[2:]]


def half(texts: Texts, random: random.Random) -> Texts | None:
    """The first half of the messages, or of the words of the answer."""
    if len(texts) >= 4:
        return texts[: len(texts) // 4 * 2]
    words = texts[1].split(" ")
    return [texts[0], " ".join(words[: len(words) // 2])] if len(words) >= 20 else None


def number_changed(texts: Texts, random: random.Random) -> Texts | None:
    """A number in the question is another one."""
    numbers = list(re.finditer(r"\d+", texts[0]))
    if not numbers:
        return None
    match = random.choice(numbers)
    other = str(int(match[0]) + random.choice((1, 2, 10, 100)))
    return [texts[0][: match.start()] + other + texts[0][match.end() :], *texts[1:]]


def name_changed(names: Texts, texts: Texts, random: random.Random) -> Texts | None:
    """A capitalised word inside a sentence of the question is another one."""
    found = list(re.finditer(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", texts[0]))
    if not found:
        return None
    match, other = random.choice(found), random.choice(names)
    return [texts[0][: match.start()] + other + texts[0][match.end() :], *texts[1:]] if other != match[0] else None


def negated(texts: Texts, random: random.Random) -> Texts | None:
    """A negation is removed from the question, or added."""
    without, count = re.subn(r" (?:not|never)\b|n['’]t\b", "", texts[0])
    if count:
        return [without, *texts[1:]]
    text, count = re.subn(
        r"\b(is|are|was|do|does|can|will|would|have|has)\b", random.choice((r"\1 not", r"\1n't")), without, count=1
    )
    return [text, *texts[1:]] if count else None


def answered_otherwise(answers: Texts, texts: Texts, random: random.Random) -> Texts | None:
    """The answer is another one."""
    return [texts[0], random.choice(answers), *texts[2:]]


def answer_turned(texts: Texts, random: random.Random) -> Texts | None:
    """In the answer a number is another one, there is a negation more or less, or a word has become its opposite."""
    changed = [result[0] for change in (number_changed, negated) if (result := change([texts[1]], random))]
    opposite = re.compile(rf"\b(?:{'|'.join(OPPOSITES)})\b")
    changed += [opposite.sub(lambda match: OPPOSITES[match[0]], texts[1], count=1)] if opposite.search(texts[1]) else []
    return [texts[0], random.choice(changed), *texts[2:]] if changed else None


def read(data: Path) -> Iterator[str]:
    """The conversations of all datasets, each once."""
    seen = set()
    for file, name in SOURCES.items():
        parameters = SourceParameters(path=data / file, format=name)
        for item in records("data", parameters, Tally()) if parameters.path.exists() else ():
            if isinstance(item, Record) and item.text not in seen:
                seen.add(item.text)
                yield item.text


def plant(change: Change, count: int, texts: Texts, random: random.Random) -> dict[str, str]:
    """Changed copies, each with its original, which is removed from the texts."""
    known, pairs = set(texts), {}
    for text in random.sample(texts, len(texts)):
        if len(pairs) == count:
            break
        messages = texts_of(text)
        if messages and (changed := change(messages, random)) and all(part.strip() for part in changed):
            copy = rendered(changed)
            if copy not in known and words_of(changed) != words_of(messages):
                pairs[copy] = text
                known.add(copy)
    originals = set(pairs.values())
    texts[:] = [text for text in texts if text not in originals]
    return pairs


def mixed(folder: Path, near_duplicates: bool) -> tuple[set[str], float]:
    """The texts that remain, and the CPU time."""
    outputs = [
        folder / name for name in ("train.jsonl", "validation.jsonl", "test.jsonl", "manifest.json", "metrics.json")
    ]
    prepared = folder / "prepared"
    sources = {file.name.removesuffix(".rejects.jsonl"): {} for file in prepared.glob("*.rejects.jsonl")}
    shares = {"validation_share": 0.05, "test_share": 0.05}
    os.environ["CHATMILL_WORKERS"] = "1"  # a single process, so that its time is all
    start = time.process_time()
    mix.main(prepared, *outputs, prepare=sources, near_duplicates=near_duplicates, **shares)
    seconds = time.process_time() - start
    return {record.text for output in outputs[:3] for record in read_records(output)}, seconds


def write(folder: Path, name: str, texts: Iterable[tuple[str, str | None]]) -> None:
    """A prepared file of texts, each on a side or on that of its group."""
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as out:
        for text, side in texts:
            group = question_group(text)
            out.write(Record(name, on_side(group, side) if side else group, text).to_json())
    (folder / f"{name}.rejects.jsonl").touch()
    write_file_manifest(folder / f"{name}.manifest.json", [], kind="conversations", counts={})


def dropped(texts: list[str], planted: dict[str, dict[str, str]], side: str) -> dict[str, list[tuple[str, str]]]:
    """For each kind the planted copies that are dropped, with their originals."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        originals = {text for pairs in planted.values() for text in pairs.values()}
        fillers = [(f"validation {side}", "validation"), (f"test {side}", "test")]
        records = [(rendered([text, "Yes."]), name) for text, name in fillers]
        records += [(text, side if text in originals else "train") for text in dict.fromkeys([*texts, *originals])]
        write(folder / "prepared", "0", records)  # the first in the order
        for kind, pairs in planted.items():
            write(folder / "prepared", kind.replace(" ", "_"), [(copy, "train") for copy in pairs])
        remaining, _ = mixed(folder, near_duplicates=True)
    return {kind: [pair for pair in pairs.items() if pair[0] not in remaining] for kind, pairs in planted.items()}


def speed(texts: list[str]) -> list[str]:
    """Print MB/s without and with near-duplicates, and how many these drop; return the conversations that remain."""
    size = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder / "prepared", "data", ((text, None) for text in texts))
        for near_duplicates in (False, True):
            remaining, seconds = mixed(folder, near_duplicates)
            found = json.loads((folder / "metrics.json").read_text())["near_duplicates"]
            print(f"near_duplicates: {near_duplicates!s:6}{size:6.1f} MB{size / seconds:6.1f} MB/s, dropped: {found}")
    return [text for text in texts if text in remaining]


def main(data: Path, seed: int = 1) -> None:
    """Print a line for each kind, and the speed."""
    texts, choose = speed(list(read(data))), random.Random(seed)
    words = sorted(
        {word for text in texts[::10] for word in re.findall(r"(?<= )[a-z]{3,}(?= )", text)} - {"not", "never"}
    )
    names = sorted({name for text in texts[::10] for name in re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", text)})
    answers = [messages[1] for text in texts[::10] if (messages := texts_of(text))]
    kinds: dict[str, tuple[Change, int]] = {
        "five-word shingles alike": (partial(alike, words), PAIRS),
        "a word changed": (partial(word_changed, words), PAIRS),
        "a tenth of the answer changed": (partial(tenth_changed, words), PAIRS),
        "half of the other": (half, PAIRS),
        "another number": (number_changed, OTHERS),
        "another name": (partial(name_changed, names), OTHERS),
        "negated": (negated, OTHERS),
        "another answer": (partial(answered_otherwise, answers), OTHERS),
        "answer turned": (answer_turned, OTHERS),
    }
    unused = list(texts)
    planted = {kind: plant(change, count, unused, choose) for kind, (change, count) in kinds.items()}
    found = [dropped(texts, planted, side) for side in ("train", "test")]
    print(f"{'':32}{'pairs':>6}{'in train':>10}{'across':>8}")
    for kind, pairs in planted.items():
        print(f"{kind:32}{len(pairs):6}{len(found[0][kind]):10}{len(found[1][kind]):8}")
    if log := os.environ.get("PAIRS"):  # a file for the pairs, to be read
        Path(log).write_text(json.dumps({"planted": planted, "dropped": found}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
