"""Finds what looks like personal data in a text, and replaces it by stand-ins."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial


def _luhn(number: str) -> bool:
    """Whether digits are the number of a payment card, whose last digit is a checksum."""
    digits = [int(digit) for digit in number if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    is_book = len(digits) == 13 and digits[:2] == [9, 7]  # the number of a book or magazine has another checksum
    return len({*digits}) > 1 and not is_book and (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def _is_iban(number: str) -> bool:
    """Whether an international bank account number has the right checksum."""
    compact = number.replace(" ", "")
    return int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1


def _is_phone(number: str) -> bool:
    digits = [digit for digit in number if digit.isdigit()]
    return 8 <= len(digits) <= 15 and len({*digits}) > 2


def _is_address(number: str) -> bool:
    """Whether a number of four parts is an address, and none that stands for the machine itself."""
    parts = [int(part) for part in number.split(".")]
    return max(parts) < 256 and parts[0] not in (0, 127)


PERSONAL: dict[str, tuple[str, re.Pattern[str], Callable[[str], bool]]] = {  # stand-in, pattern, which matches count
    "e-mail addresses": ("[email]", re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{2,63}){1,4}\b"), bool),
    "bank accounts": ("[iban]", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?\b"), _is_iban),
    "card numbers": ("[card]", re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w.-])"), _luhn),
    "IP addresses": ("[ip]", re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"), _is_address),
    "phone numbers": (
        "[phone]",
        re.compile(
            r"(?<![\w.,/+-])(?:\+\d{1,3}[ .-]?)?(?:\(\d{2,5}\)[ ]?|\d{2,5}[ .-])\d{3,4}[ .-]?\d{3,5}(?![\w/-]|,\d)"
            r"|(?<![\w+])(?:\+\d(?:[ ().-]{0,2}\d){7,14}|@\d{8,15})(?!\d)"
            r"|(?<![\w.])0\d([ .-])\d{2}(?:\1\d{2}){3}(?![\w-])|(?<![\w.])0\d{2,4}[/ -]?\d{5,9}(?![\w-])"
        ),
        _is_phone,
    ),
}
_MIN_NAME = 3  # letters; shorter names, and shorter parts of names, stay
_NO_NAMES = {"The", "From", "Work", "Home", "Mom", "Mum", "Dad", "Boss", "Office"}  # in names of an address book


def redacted(text: str, names: Sequence[str], rules: list[str]) -> str:
    """The text with stand-ins such as [email] and [name]; the rules that were needed are added to `rules`."""
    for stand_in, pattern, counts in (*PERSONAL.values(), ("[name]", _name_pattern(tuple(names)), bool)):
        changed = pattern.sub(partial(_replaced, stand_in, counts), text)
        if changed != text and (rule := f"redacted_{stand_in[1:-1]}") not in rules:
            rules.append(rule)
        text = changed
    return text


def _replaced(stand_in: str, counts: Callable[[str], bool], match: re.Match[str]) -> str:
    return stand_in if counts(match[0]) else match[0]


@lru_cache
def _name_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern for the names and each capitalised word of a name, as whole words, in upper or lower case."""
    parts = {part for name in names for part in re.findall(r"[^\W\d_]+", name) if part[0].isupper()} - _NO_NAMES
    every = sorted((name for name in parts | {*names} if len(name) >= _MIN_NAME), key=len, reverse=True)
    return re.compile(rf"(?i)(?<!\w)(?:{'|'.join(map(re.escape, every))})(?!\w)" if every else "(?!)")
