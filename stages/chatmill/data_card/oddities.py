"""What is odd in texts: traces of wrong decoding, markup and templates, and what looks like personal data."""

import re
from collections.abc import Callable
from typing import NamedTuple

AROUND = 24  # characters of an example on each side


class Oddity(NamedTuple):
    """A pattern, and which of its matches count."""

    pattern: re.Pattern[str]
    counts: Callable[[str], bool] = bool


def _luhn(number: str) -> bool:
    """Whether digits are the number of a payment card, whose last digit is a checksum."""
    digits = [int(digit) for digit in number if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    is_book = len(digits) == 13 and digits[:2] == [9, 7]  # the number of a book or magazine has another checksum
    return len({*digits}) > 1 and not is_book and (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def _is_phone(number: str) -> bool:
    digits = [digit for digit in number if digit.isdigit()]
    return 8 <= len(digits) <= 15 and len({*digits}) > 2


def _is_address(number: str) -> bool:
    """Whether a number of four parts is an address, and none that stands for the machine itself."""
    parts = [int(part) for part in number.split(".")]
    return max(parts) < 256 and parts[0] not in (0, 127)


_TAGS = "a|b|i|u|p|br|hr|div|span|ul|ol|li|table|tr|td|th|img|h[1-6]|script|style|strong|em|pre|code|html|body|font"
ODDITIES = {
    "mojibake": Oddity(re.compile("Ã[\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹Œ‘’“”•–—˜™š›œžŸ]|â€|Â[\xa0-\xbf]|ðŸ|ï»¿|\ufffd")),
    "HTML": Oddity(re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]{{0,300}})?/?>|&(?:amp|lt|gt|quot|nbsp|#\d{{1,6}});", re.I)),
    "URLs": Oddity(re.compile(r"\bhttps?://[^\s<>\"]+|\bwww\.[^\s<>\"]+\.\w+", re.I)),
    "control characters": Oddity(re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]")),
    "template marks": Oddity(
        re.compile(
            r"<\|(?:im_start|im_end|endoftext|eot_id|start_header_id|user|assistant|system|end)\|>|\[/?INST\]|<</?SYS>>"
            r"|</?s>|<(?:start|end)_of_turn>|###\s?(?:Human|Assistant|Instruction|Response|User|System)\b"
        )
    ),
    "placeholders": Oddity(
        re.compile(r"\{\{\s*\w+\s*\}\}|\[(?:NAME|REDACTED|EMAIL|PHONE|URL)[\w ]*\]|<(?:unk|pad|mask|NAME|URL|USER)>")
    ),
    "e-mail addresses": Oddity(re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{2,63}){1,4}\b")),
    "phone numbers": Oddity(
        re.compile(
            r"(?<![\w.,/+-])(?:\+\d{1,3}[ .-]?)?(?:\(\d{2,5}\)[ ]?|\d{2,5}[ .-])\d{3,4}[ .-]?\d{3,5}(?![\w,/-])"
        ),
        _is_phone,
    ),
    "card numbers": Oddity(re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w.-])"), _luhn),
    "IP addresses": Oddity(re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"), _is_address),
}


def find_oddities(text: str) -> dict[str, str]:
    """The odd things in a text by name, each with its first example."""
    found = {}
    for name, (pattern, counts) in ODDITIES.items():
        match = next((match for match in pattern.finditer(text) if counts(match[0])), None)
        if match is not None:
            start, end = max(0, match.start() - AROUND), min(match.end(), match.start() + 3 * AROUND) + AROUND
            example = " ".join(text[start:end].split())
            found[name] = f"{'…' if start else ''}{example}{'…' if end < len(text) else ''}"
    return found
