"""Files of datasets with random changes, and whether all that is in them is kept or counted."""

import json
import random

import prepare
from support.texts import FRACTION

PIECES = b'" { } [ ] , : \\ null 1e999 \xff \0 <|im_end|> \\ud800'.split()
PIECES += [b"\n", b"\r", "\u2028".encode(), b'"role": "assistant"', b"\n\nHuman: ", b" __eou__ "]


def mutated(content, pick):
    """One to four pieces are cut, doubled, or replaced."""
    for _ in range(pick.randint(1, 4)):
        start = pick.randrange(len(content) + 1)
        end = min(len(content), start + pick.choice((0, 1, 1, 8, 40)))
        piece = pick.choice([b"", content[start:end] * 2, pick.choice(PIECES)])
        content = content[:start] + piece + content[end:]
    return content


def check_mutations(path, content, of, record_property, **parameters):
    """Prepare a share of 10,000 mutations, one in `of`; record how many, and how many were refused as a whole."""
    outputs = [path.with_name(f"prepared.{suffix}") for suffix in ("jsonl", "rejects.jsonl", "manifest.json")]
    count, refused = max(1, int(10_000 * FRACTION / of)), 0
    for number in range(count):
        path.write_bytes(mutated(content, random.Random(number)))
        try:
            prepare.main(*outputs, parameters={"path": path, "max_reject_rate": 0.9999} | parameters)
        except ValueError as error:
            assert "\n" not in str(error).strip(), error
            refused += 1
            continue
        found = json.loads(outputs[2].read_text())["counts"]
        for unit in ("messages", "bytes"):
            counts = found.get(unit, {"read": 0, "kept": 0, "rejected": {}})
            assert counts["read"] == counts["kept"] + sum(counts["rejected"].values()), (number, unit, counts)
    record_property("cases", count)
    record_property("refused", refused)
