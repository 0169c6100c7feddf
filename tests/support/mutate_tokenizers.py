"""Read mutations of tokenizer files one after another, under limits; print the outcome of each as a line of JSON.

    cd empty && python mutate_tokenizers.py ../originals ../mutated 0 300

reads the mutations numbered 0 to 299, always the same ones, of the files in `originals`. Each may be refused by
ValueError or be a tokenizer that works. One with another outcome stays in `mutated`; one that kills the process, or
takes too long, has no line, so the count of lines is its number, and stderr has the place.
"""

import faulthandler
import json
import pickletools
import resource
import shutil
import struct
import sys
import tempfile
import traceback
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import write_binary
from chatmill.tokenizer.formats.tokenizer_loading import make_lossless, read_vocabulary
from chatmill.tokenizer.formats.validation import ReferenceEncoder
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary

TEXT = "The café, 12 naïve 中文 🙂"
LITERAL = "<|im_end|>"  # ordinary text, not a control token
SECONDS = 5  # for one file
MEMORY = 2 << 30  # bytes of address space beyond those at the start
GOOD = ("refused", "unusable", "works")
HARMLESS = {"builtins.id", "mmap.__new__", "object.__getattr__", "object.__setattr__", "sys._getframe"}

LONG = "th" * 10_000
BAD_PATTERNS = [
    *["", "(", "(a+)+$", "(?:a|aa)+(?!b)$", "a*", "x", "(?=a)", "(?<=a)", r"\p{No}", r"\p{Nonsense}", "[z-a]", "^"],
    *[r"(?P<n>a)\k<n>", "a{99999}{99999}", "(" * 5000 + ")" * 5000, r"\s+", r"[^\s]", "\ud800", "\0", ".", "(?i)"],
    *["$", "\\", r"\X"],
]
FLOATS = [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 3e38, 1e-45]


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """The bytes altered, truncated, shortened or lengthened, or with a part doubled or moved."""
    start, stop = _stretch(data, random)
    match random.randrange(7):
        case 0:
            altered = bytearray(data or b"\0")
            for _ in range(random.choice([1, 1, 1, 2, 8])):
                altered[random.randrange(len(altered))] ^= 1 << random.randrange(8)
            return bytes(altered)
        case 1:
            return random.choice([data[:start], data[start:]])
        case 2:
            return data[:start] + data[stop:]
        case 3:
            return data[:start] + random.randbytes(stop - start) + data[stop:]
        case 4:
            filler = [random.randbytes(8), b"\0" * 9, b"\xff" * 9, b"9", b'"', b"[" * 100_000, b"\n", b" "]
            return data[:start] + random.choice(filler) + data[start:]
        case 5:
            return data[:stop] + data[start:]
    parts = [0, *sorted([start, stop, *_stretch(data, random)]), len(data)]
    first, one, between, other, last = (data[i:j] for i, j in pairwise(parts))
    return first + other + between + one + last


def _stretch(data: bytes, random: Random) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + int(2 ** random.uniform(0, 12)))


def _rearranged(pieces: list[bytes], rare: list[int], random: Random, other: Callable[[bytes], bytes]) -> list[bytes]:
    """The pieces with one removed, doubled, swapped, extended or replaced; in half of the cases a rare one."""
    i, j = (random.choice(rare) if rare and random.random() < 0.5 else random.randrange(len(pieces)) for _ in range(2))
    match random.randrange(7):
        case 0:
            pieces[i] = b""
        case 1:
            pieces[i] *= 2
        case 2:
            pieces[i], pieces[j] = pieces[j], pieces[i]
        case 3:
            pieces[i] += other(pieces[i])
        case _:
            pieces[i] = other(pieces[i])
    return pieces


# JSON

NUMERALS = "-1 0 1 97 1.5 97.0 -0.0 NaN Infinity 1e300 1e999 2147483648 4294967296 9223372036854775808"
OTHERS = 'null true false "" "x" "a" "é" "Ġ" "\\u0000" "<0x41>" "<|unused_0|>" [] {} [[]] {"a":1} ["a","b"] [0,1]'
DEEP = ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "0" + "}" * 100_000]
LENGTHY = ["9" * 400, "9" * 5000, json.dumps(LONG)]
VALUES = [*NUMERALS.split(), *OTHERS.split(), *DEEP, *LENGTHY, '"a b"', *map(json.dumps, BAD_PATTERNS)]
STRINGS = [i for i, value in enumerate(VALUES) if value.startswith('"')]


def mutate_json(data: bytes, random: Random) -> bytes:
    """The content with values and keys of other types and sizes, removed, doubled or swapped."""
    content = json.loads(data)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        if content:
            _change_json(content, random)
    if random.random() < 0.1:
        _change_patterns(content, random.choice(BAD_PATTERNS))
    text = json.dumps(content, ensure_ascii=random.random() < 0.5).replace('"@same ', '"')
    for i, value in enumerate(VALUES):
        text = text.replace(f'"@{i}"', value)
    return text.encode(errors="surrogatepass")


def _place(content: dict | list, random: Random) -> tuple[dict | list, str | int]:
    """A random value: what holds it, and its key."""
    holder = content
    while True:
        key = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
        if not isinstance(holder[key], dict | list) or not holder[key] or random.random() < 0.2:
            return holder, key
        holder = holder[key]


def _change_json(content: dict | list, random: Random) -> None:
    (holder, key), (other, other_key) = _place(content, random), _place(content, random)
    sibling = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
    match random.randrange(7):
        case 0 if isinstance(holder[key], str):
            holder[key] = mutate_bytes(holder[key].encode(errors="replace"), random).decode(errors="replace")
        case 0 | 1:
            holder[key] = f"@{random.randrange(len(VALUES))}"
        case 2:
            del holder[key]
        case 3:
            holder[key] = json.loads(json.dumps(other[other_key]))
        case 4:
            holder[key], holder[sibling] = holder[sibling], holder[key]
        case 5 if isinstance(holder, dict):
            holder[f"@same {sibling}"] = holder[key]
        case 6 if isinstance(holder, dict):
            holder[f"@{random.choice(STRINGS)}"] = holder.pop(key)
        case _:
            holder.insert(sibling, holder[key])


def _change_patterns(content: object, pattern: str) -> None:
    for value in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        _change_patterns(value, pattern)
    if isinstance(content, dict):
        content |= {key: pattern for key in ("Regex", "pattern") if isinstance(content.get(key), str)}


# Lines


def mutate_ranks(data: bytes, random: Random) -> bytes:
    """The lines with some removed, doubled, swapped, or with other ranks and tokens."""
    ranks = [b"-1", b"1.5", b"", b"9" * 5000, b"%d" % 2**31, b"%d" % 2**63, b"256", b"\xc2\xb2", b"1 1"]
    tokens = [b"", b"====", b"YQ", b"YWE=", b"\xff", b64encode(LONG.encode())]

    def other(line: bytes) -> bytes:
        token, rank = line.split(b" ")
        return random.choice([token + b" " + random.choice(ranks), random.choice(tokens) + b" " + rank])

    lines = _rearranged(data.splitlines(), [], random, other)
    return random.choice([b"\n", b"\n", b"\r\n", b"\r", b"\n\n"]).join(lines)


def mutate_lines(data: bytes, random: Random) -> bytes:
    """The lines with some removed, doubled, swapped or replaced."""
    lines = [
        b"",
        b"a b",
        b"a b c",
        b"a",
        b"##",
        b"##a",
        b"[UNK]",
        b"[unused0]",
        b"\xff",
        b"\xe2\x96\x81",
        LONG.encode(),
    ]
    return b"\n".join(_rearranged(data.split(b"\n"), [], random, lambda _: random.choice(lines)))


# Pickles

OPCODES = [
    *[b"cos\nsystem\n", b"ios\nsystem\n", b"\x8c\2os\x8c\6system\x93", b"cos\nsystem\n(X\4\0\0\0>rantR", b"Pa\n"],
    *[b"ctiktoken.core\nEncoding\n", b"\x8c\x0dtiktoken.core\x8c\x08Encoding\x93)\x81", b"C\0", b"C\1a", b"\x82\1"],
    *[b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f", b"\x8a\x09" + b"\xff" * 8 + b"\0", b"I%d\n" % 10**20, b"K\0"],
    *[b"X\xff\xff\xff\xff", b"\x8e" + b"\xff" * 7 + b"\x7f", b"\x8d" + b"\1" * 8, b"r\xff\xff\xff\xff", b"\x80\xff"],
    *[b"\x95" + b"\xff" * 8, b"\x8c\3\xed\xa0\x80", b"h\0", b"h\1", b"q\0", b"(" * 9999, b"}(" * 9999, b"}\x94" * 9999],
    b"B" + struct.pack("<I", len(LONG)) + LONG.encode(),
]


def mutate_pickle(data: bytes, random: Random) -> bytes:
    """The pickle with opcodes added, removed, doubled, swapped, or with other arguments."""

    def other(piece: bytes) -> bytes:
        return random.choice([random.randbytes(1), random.choice(OPCODES), piece[:1] + mutate_bytes(piece[1:], random)])

    starts = [position for _, _, position in pickletools.genops(data)]
    pieces = [data[start:stop] for start, stop in pairwise([*starts, len(data)])]
    rare = [i for i, piece in enumerate(pieces) if piece[:1] not in b"CKM\x94"]  # few among many tokens and ranks
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        _rearranged(pieces, rare, random, other)
    return b"".join(pieces)


# Protocol buffers

FIELDS = [
    b"\x0b" * 100_000,
    b"\x0b\x0b\x0c\x0c",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x0a\xff\xff\xff\xff\x07",
    b"\xff" * 11,
]
NUMBERS = [*range(8), 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
PIECES = ["x", "a", "", "<0x41>", "<0xZZ>", "\u2581", "\u2581the", "\0", "<|unused_0|>", "<|bos|>", LONG]


def mutate_message(data: bytes, random: Random, levels: int = 1) -> bytes:
    """The message with fields added, removed, doubled, swapped, of other types or with other values."""

    def other(field: bytes) -> bytes:
        tag, start = _read_varint(field, 0)
        if random.random() < 0.1:
            retyped = _varint(tag ^ random.randrange(1, 64)) + field[start:]
            return random.choice([*FIELDS, mutate_bytes(field, random), retyped])
        if tag & 7 != 2:
            number, fraction = random.choice(NUMBERS), random.choice(FLOATS)
            return field[:start] + (_varint(number) if tag & 7 == 0 else struct.pack("<f", fraction))
        _, start = _read_varint(field, start)
        value = random.choice([mutate_bytes(field[start:], random), b"\xff", *map(str.encode, PIECES)])
        if levels and len(field) > start:
            value = mutate_message(field[start:], random, levels - 1)
        return _varint(tag) + _varint(len(value)) + value

    fields = list(_fields(data))
    rare = [i for i, field in enumerate(fields) if field[0] != fields[0][0]]  # few among many pieces
    return b"".join(_rearranged(fields, rare, random, other))


@cache
def _fields(data: bytes) -> tuple[bytes, ...]:
    fields, start = [], 0
    while start < len(data):
        tag, stop = _read_varint(data, start)
        if tag & 7 == 5:
            stop += 4
        else:
            number, stop = _read_varint(data, stop)
            stop += number if tag & 7 == 2 else 0
        fields.append(data[start:stop])
        start = stop
    return tuple(fields)


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + _varint(number >> 7)


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    """The number, and where it ends."""
    stop = next(i for i in range(start, len(data)) if data[i] < 0x80) + 1
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(data[start:stop])), stop


# tokenizer.bin

FOOTER = struct.Struct("<8sIQIII")


def mutate_binary(data: bytes, random: Random) -> bytes:
    """The file altered anywhere, with matching checksums; or another tokenizer, with a matching fingerprint."""
    return random.choice([_resealed, _rewritten])(data, random)


def _resealed(data: bytes, random: Random) -> bytes:
    magic, version, index, *counts, length = FOOTER.unpack_from(data, len(data) - 16 - FOOTER.size)
    body, text = data[:index], data[index : index + length]
    match random.randrange(4):
        case 0 | 1:
            body = mutate_bytes(body, random)
        case 2:
            text = mutate_json(text, random)
    numbers = [len(body) if random.random() < 0.9 else index, *counts, len(text)]
    if random.random() < 0.3:
        i = random.randrange(4)
        numbers[i] = random.choice([0, 1, numbers[i] - 1, numbers[i] + 1, numbers[i] * 2, 2**31, 2**32 - 1]) % 2**32
    sums = b"".join(_checksum(body[i : i + 4096], 8) for i in range(0, len(body), 4096))
    footer = FOOTER.pack(magic, random.choice([version] * 9 + [0, 2]), *numbers)
    return body + text + sums + footer + _checksum(text + sums + footer, 16)


def _checksum(data: bytes, size: int) -> bytes:
    return blake2b(data, digest_size=size).digest()


def _rewritten(data: bytes, random: Random) -> bytes:
    changed = _changed(_vocabulary(data), random)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.bin"
        try:
            str(changed.fingerprint)
        except ValueError:  # a control token's name is not UTF-8
            vars(changed).update(special={}, fingerprint="")
        try:
            write_binary(changed, file)
        except (struct.error, ValueError, TypeError, LookupError):
            return _resealed(data, random)  # no file can hold that
        return file.read_bytes()


@cache
def _vocabulary(data: bytes) -> Vocabulary:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.bin"
        file.write_bytes(data)
        return read_vocabulary(file)


def _changed(vocabulary: Vocabulary, random: Random) -> Vocabulary:
    tokens, kinds, scores = list(vocabulary.tokens), list(vocabulary.kinds), list(vocabulary.scores)
    merges = list(vocabulary.merges) or [(0, 1)]
    i, j = random.randrange(len(tokens)), random.randrange(len(tokens))
    match random.randrange(8 if vocabulary.steps else 7):
        case 0:
            tokens[i] = random.choice([b"", tokens[j], LONG.encode(), b"\xff\xfe", b"zz", b"<|bos|>", b"a\0"])
        case 1:
            kinds[i] = random.choice(list(Kind))
        case 2:
            kinds = [random.choice(list(Kind)) if kind == kinds[i] else kind for kind in kinds]
        case 3:
            scores[i] = random.choice(FLOATS)
        case 4:
            pair = random.choice([(0, 1), (i, j), (2**31, 0), (len(tokens), 0), (len(tokens) - 1, 0), merges[0]])
            merges[random.randrange(len(merges))] = pair
        case 5:
            return replace(vocabulary, pattern=random.choice([None, 1, [], *BAD_PATTERNS]))
        case 6:
            algorithm = random.choice(["lookup", "merge", "wordpiece", "viterbi", "x", "", None, 1, []])
            return replace(vocabulary, algorithm=algorithm, type=random.choice(["bpe", "", "x", "a/b", None, 1, []]))
        case 7:
            steps = mutate_json(vocabulary.steps.encode(), random).decode(errors="replace")
            return replace(vocabulary, steps=random.choice([steps, steps, steps, 1, []]))
    return replace(vocabulary, tokens=tuple(tokens), kinds=tuple(kinds), scores=tuple(scores), merges=tuple(merges))


# Reading

MUTATIONS: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": mutate_json,
    ".tiktoken": mutate_ranks,
    ".pkl": mutate_pickle,
    ".bin": mutate_binary,
    ".model": mutate_message,
    ".bpe": mutate_lines,
    ".txt": mutate_lines,
}


def write_mutation(originals: Path, folder: Path, number: int) -> Path:
    """One of the originals with one of its files altered, in a folder of its own."""
    random = Random(f"{originals.name} {number}")
    shutil.copytree(random.choice(sorted(originals.iterdir())), folder)
    files = sorted(folder.iterdir())
    file = random.choice(files)
    mutate = random.choice([mutate_bytes, *[MUTATIONS[file.suffix]] * 3])
    file.write_bytes(mutate(file.read_bytes(), random))
    return files[0]  # the tokenizer; its description has a longer name


def outcome(file: Path) -> str:
    """Read and use a file that may be a tokenizer, and return the outcome; raises any error but a refusal."""
    try:
        vocabulary = read_vocabulary(file)
    except ValueError as error:
        return "refused" if str(file) in str(error) else f"the message does not name the file: {error!s:.200}"
    try:
        tokenizer = ChatTokenizer(make_lossless(vocabulary))
        texts = {TEXT: tokenizer.encode(TEXT), LITERAL: tokenizer.encode(LITERAL)}
    except ValueError:
        tokenizer = None
    try:
        slow = ReferenceEncoder(vocabulary).encode(TEXT)
    except ValueError:
        slow = None
    if tokenizer is None:
        return "unusable"
    for text, ids in texts.items():
        if tokenizer.decode(ids) != text:
            return f"bytes do not add up: {tokenizer.decode(ids)!r:.200}"
        if any(vocabulary.kinds[i] >= Kind.CONTROL for i in ids):
            return "text gives control tokens"
    if slow is not None and vocabulary.lossless and tokenizer.decode(slow) != TEXT:
        return f"bytes of the slow encoder do not add up: {tokenizer.decode(slow)!r:.200}"
    if not all(type(i) is int for pair in vocabulary.merges for i in pair):
        return "ids are no integers"
    return "works" if tokenizer.fingerprint else "no fingerprint"


class AuditHook:
    """Records what the interpreter does beyond reading."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on, self.seen = str(folder), False, []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an event; called by the interpreter before it."""
        reads = event == "open" and str(arguments[0]).startswith(self.folder) and arguments[1] in ("r", "rb")
        if self.on and not reads and event not in HARMLESS:
            self.seen.append(f"{event} {arguments!r:.80}")


def run_audited(file: Path, watch: AuditHook) -> str:
    """The outcome, or the error and its place."""
    watch.seen.clear()
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    watch.on = True
    try:
        result = outcome(file)
    except BaseException as error:  # a panic in Rust is no Exception
        watch.on = False
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/chatmill/" in frame.filename]
        result = f"{type(error).__name__} in {Path(frames[-1].filename).name}:{frames[-1].lineno}: {error!s:.200}"
    watch.on = False
    faulthandler.cancel_dump_traceback_later()
    return f"it does {watch.seen[:3]}" if watch.seen else result


def _status(field: str) -> int:
    """Bytes of the process's memory, as /proc names them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def main(originals: Path, folder: Path, first: int, last: int) -> None:
    """Read the mutations from `first` up to `last`."""
    faulthandler.enable()
    watch = AuditHook(folder)
    for original in sorted(originals.iterdir()):
        assert outcome(min(original.iterdir())) in ("works", "unusable"), original
    start = _status("VmRSS")
    limit = _status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print("ready", flush=True)
    for number in range(first, last):
        result = run_audited(write_mutation(originals, folder / str(number), number), watch)
        grown = (_status("VmHWM") - start) >> 20
        print(json.dumps({"number": number, "outcome": result, "grown_mib": grown}), flush=True)
        if result in GOOD:
            shutil.rmtree(folder / str(number))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
