"""Texts on which tokenizers differ, by category: always the same ones, 30,000 with those around control tokens."""

import random
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

Texts = Iterator[str]
CONTROL = 2_000  # texts around control tokens, for each tokenizer its own
FOREIGN = ["<|im_end|>", "<s>", "</s>", "<unk>", "[MASK]", "<0x0A>", "<|endoftext|>"]  # names of other tokenizers
INVISIBLE = [
    *"\0\t\x0b\x0c\x1b\x7f\x85\xa0\xad\u0301\u0323\u034f\u061c\u0e33\u115f\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u2029",
    *"\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2069\u20dd\u20e3\u2581\u3000\u302a\u3099\ufe0e\ufe0f\ufeff\ufffc\ufffd",
    *"\ufffe\uffff\U000e0020\U000e0061\U000e007f\U000e0100\U0001f3fb\U0001f1e9\U0010ffff",
]
COMPATIBLE = [*"ſÅΩK①½²™Ⅷ㎏㍿ﷺ한각ᄒㄱﾡİıǅẞßΐ豈丽‥﹖＿¨´ﬁﬃ", "ẛ̣", "Ｈｉ", "ｶﾞ", "か゛", "が", "Ω̃", "ﬀ…"]
BLANKS = [" ", " ", " ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", "\r", "\xa0", "\u3000", "\u2009", "\x0b", "\x85"]
RUNS = [" ", "\n", "=", "0", "中", "\t", "-", "a", "é", "\u2581", "🙂", "\r\n", "_", "ab", "\xa0", " \n", ".", "\0"]
LONGEST = [" ", "\n", "=", "7", "中"]  # in runs of thousands
SEPARATORS = ["", "", ",", ".", " ", "-", ":", "/", "_", "'", "\u202f", "\xa0", "e", "x", "²"]
DIGITS = ["0123456789"] * 6 + ["٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "一二三四五六七八九十", "ⅠⅡⅣ½²"]


@cache
def make_texts(folder: Path | None, times: int = 1) -> dict[str, list[str]]:
    """Distinct texts of each category that do not depend on the tokenizer; real ones if their folder is given.

    `times` as many are made, where there are so many.
    """
    lines = _real_lines(folder) if folder else {}
    words = [word for line in lines.get("languages", [])[::9] for word in line.split()]
    words = words or ["the", "naïve", "café", "12"]
    makers: dict[str, tuple[int, Callable[[random.Random], Texts]]] = {
        "languages": (8_000, lambda pick: _sampled(lines["languages"], pick)),
        "prose": (2_500, lambda pick: _sampled(lines["prose"], pick)),
        "naughty": (600, lambda _: iter(lines["naughty"])),
        "emoji": (1_400, lambda pick: _sampled(lines["emoji"], pick)),
        "code": (3_000, _code),
        "scripts": (5_000, _scripts),
        "forms": (2_000, lambda pick: _forms(words, pick)),
        "marks": (2_500, lambda pick: _marks(words, pick)),
        "runs": (600, _runs),
        "blanks": (1_400, lambda pick: _blanks(words, pick)),
        "digits": (1_000, _digits),
    }
    return {
        name: list(islice(_distinct(make(random.Random(name))), times * count))
        for name, (count, make) in makers.items()
        if folder or name not in ("languages", "prose", "naughty", "emoji")
    }


def control_texts(names: list[str], count: int = CONTROL) -> list[str]:
    """Texts with the names of control tokens, whole and altered, at all places of a text."""
    return list(islice(_distinct(_around(names, random.Random(len(names)))), count))


def _distinct(texts: Texts) -> Texts:
    seen: set[str] = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text


def _sampled(lines: list[str], pick: random.Random) -> Texts:
    yield from pick.sample(lines, len(lines))


def _real_lines(folder: Path) -> dict[str, list[str]]:
    """Lines in many languages; stretches of prose, in books with CRLF; naughty strings and emoji."""

    def read(pattern: str) -> list[str]:
        files = sorted(file for file in folder.glob(pattern) if file.is_file() and not file.stem.isupper())
        return [file.read_bytes().decode(errors="replace") for file in files]

    def cut(text: str) -> list[str]:
        return [text[start : start + 200 + start % 601] for start in range(0, len(text), 4_000)]

    prose = [read(pattern) for pattern in ("classic_books/*.md", "wikitext2/*.txt", "tinystories/*.txt")]
    return {
        "languages": [line for text in read("tatoeba_laser/*-*") for line in text.split("\n")],
        "prose": [part for group in prose for text in group for part in cut(text)],
        "naughty": [line for text in read("blns/blns.txt") for line in text.split("\n") if not line.startswith("# ")],
        "emoji": [line.partition("#")[2] for text in read("emoji/*.txt") for line in text.split("\n")],
    }


def _code(pick: random.Random) -> Texts:
    """Blocks of Python's standard library and of installed packages, cut before a definition where there is one."""
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    installed = sorted(file for name in ("numpy", "pip", "yaml", "tqdm") for file in _package(name).rglob("*.py"))
    while True:
        source = pick.choice(pick.choice([library, installed])).read_bytes().decode(errors="replace")
        start = pick.randrange(len(source) + 1)
        start = max(0, source.find("\ndef ", start), source.find("\n    def ", start)) or start
        yield source[start : start + int(200 * 10 ** pick.random())]


def _package(name: str) -> Path:
    return Path(__import__(name).__file__).parent


@cache
def _characters_of_scripts() -> dict[str, list[str]]:
    """The assigned characters by the first word of their names, such as CYRILLIC; without surrogates."""
    scripts: dict[str, list[str]] = {}
    for code in range(0x110000):
        if unicodedata.category(chr(code)) not in ("Cs", "Cn"):
            scripts.setdefault(unicodedata.name(chr(code), "none").split()[0].split("-")[0], []).append(chr(code))
    return scripts


def _scripts(pick: random.Random) -> Texts:
    """Characters of each script in turn, alone, as words, and beside Latin text."""
    scripts = list(_characters_of_scripts().values())
    while True:
        for characters in scripts:
            words = ["".join(pick.choices(characters, k=pick.randint(1, 7))) for _ in range(pick.randint(1, 6))]
            yield pick.choice(["", " ", " ", "\n", " a ", "1"]).join(words)


def _forms(words: list[str], pick: random.Random) -> Texts:
    """The same words in all normalisation forms, beside characters with compatible equivalents."""
    while True:
        text = " ".join([*pick.choices(words, k=pick.randint(1, 4)), *pick.choices(COMPATIBLE, k=pick.randint(1, 3))])
        yield text
        yield from (unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD"))
        yield pick.choice([text.upper(), text.lower(), text.title(), text.swapcase()])


def _marks(words: list[str], pick: random.Random) -> Texts:
    """Combining marks, invisible and unusual characters at any place of some words."""
    while True:
        letters = list(" ".join(pick.choices(words, k=pick.randint(0, 4))))
        for _ in range(pick.randint(1, 4)):
            letters.insert(pick.randint(0, len(letters)), pick.choice(INVISIBLE) * pick.choice([1, 1, 1, 2, 3]))
        yield "".join(letters)


def _runs(pick: random.Random) -> Texts:
    """Runs of equal characters, alone and inside words; some of 1,000 to 4,000."""
    yield from (unit * length for unit in LONGEST for length in (1_000, 2_048, 4_000))
    while True:
        run = pick.choice(RUNS) * int(300 ** pick.random())
        yield pick.choice(["{}", "{}", "a{}", "{}b", " {} x", "if{}:\n", "{0}\n{0}"]).format(run)


def _blanks(words: list[str], pick: random.Random) -> Texts:
    """Words with blanks of all kinds between them, and around them."""
    while True:
        parts = ["".join(pick.choices(BLANKS, k=pick.randint(0, 5))) for _ in range(pick.randint(1, 6))]
        yield "".join(part + pick.choice([*words[:50], "", "x", "if", "}", "."]) for part in parts) + pick.choice(parts)


def _digits(pick: random.Random) -> Texts:
    """Numbers of several scripts, with separators, units and signs."""
    while True:
        groups = ["".join(pick.choices(pick.choice(DIGITS), k=pick.randint(1, 9))) for _ in range(pick.randint(1, 5))]
        number = pick.choice(SEPARATORS).join(groups)
        yield pick.choice(["{}", " {}", "-{}", "${} ", "{}%", "v{}b", "a {} b", "{}\n{}", "({})"]).format(
            number, groups[0]
        )


def _around(names: list[str], pick: random.Random) -> Texts:
    shapes = ["{a}", "{a}{a}", " {a}", "{a} ", "  {a}  {b}", "x{a}y", "x {a} y", "{a}x", "x{a}", "word {a}\n"]
    shapes += ["\n{a}\n", "\t{a}\t\n x", "{a}{b}", "{a} {b}", "a{a} b {b}c", "é{a}1", "_{a}_", "「{a}」", "{a}\u0301"]
    shapes += ["\u2581{a}\u2581", "{a}\n\n{b}", "...{a}?", "say: {a}, {b}!  {a}", "\xa0{a}\u3000", "  {a}", "{a}\r\n"]
    shapes += ["<{a}>", "\0{a}\u200b"]
    while True:
        first, second = (
            pick.choice(names) if names and pick.random() < 0.9 else pick.choice(FOREIGN) for _ in range(2)
        )
        if pick.random() < 0.15:  # altered, so that it is ordinary text
            half = len(first) // 2
            first = pick.choice([first.upper(), first.title(), first[:-1], first[1:], f"{first[:half]} {first[half:]}"])
        yield pick.choice(shapes).format(a=first, b=second)


def is_refused(tokenizer, text):
    """Whether chatmill refuses a text, such as half of a surrogate pair."""
    try:
        tokenizer.encode(text)
    except ValueError:
        return True
    return False
