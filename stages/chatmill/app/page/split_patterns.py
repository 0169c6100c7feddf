r"""Split patterns as regular expressions of JavaScript, for the flags `gu`.

JavaScript's `\s` has U+FEFF and lacks U+0085, its `.` excludes four characters, it has no possessive quantifiers, and
not every browser has `(?i:…)`. What is not translated is refused.

    (?i:'s)|\s++$  ->  (?:'[sSſ])|(?=(?<p0>\p{White_Space}+))\k<p0>(?![\s\S])
"""

import re

_TOKEN = re.compile(
    r"(?P<property>\\[pP](?:\{\^?\w+\}|[A-Z]))|(?P<code>\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\x\{[0-9a-fA-F]+\})"
    r"|(?P<escape>\\.)|(?P<group>\((?:\?(?:i:|i\)|:|<?[=!]))?)|(?P<quantifier>(?:[+*?]|\{\d+(?:,\d*)?\})[+?]?)"
    r"|(?P<literal>[\s\S])"
)
_CATEGORY = re.compile(r"C[cfons]?|L[lmotuC]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?")
_SCRIPTS = {"Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Thai"}
_CLASSES = {
    "s": r"\p{White_Space}",
    "d": r"\p{Nd}",
    "w": r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}",
}
_CONTROLS = "nrtfv"
_FOLDED = {"s": "ſ", "k": "\u212a"}  # what also equals an ASCII letter where case is ignored


class UntranslatedPatternError(ValueError):
    """The pattern has what JavaScript's regular expressions lack."""


def to_javascript(pattern: str) -> str:
    """The expression for JavaScript. Raises UntranslatedPatternError, with the part that it lacks."""
    return _Translation(pattern).run()


class _Translation:
    def __init__(self, pattern: str) -> None:
        self._tokens = [(match.lastgroup, match[0]) for match in _TOKEN.finditer(pattern)]
        self._place = 0
        self._written: list[str] = []
        self._groups: list[tuple[int, bool]] = []  # where each open group begins, and the flag outside of it
        self._ignore_case, self._possessives = False, 0

    def run(self) -> str:
        atom = 0  # where the last atom begins
        while self._place < len(self._tokens):
            kind, text = self._tokens[self._place]
            self._place += 1
            start = len(self._written)
            if kind == "quantifier":
                self._quantify(text, atom)
                continue
            if kind == "group":
                self._open(text)
            elif text == ")":
                start, self._ignore_case = self._groups.pop()
                self._written.append(")")
            elif text == "[":
                self._written.append(self._set())
            else:
                self._written.append(self._atom(str(kind), text))
            atom = start
        return "".join(self._written)

    def _open(self, text: str) -> None:
        if text == "(?i)":
            if self._groups:
                raise UntranslatedPatternError("(?i) inside a group")
            self._ignore_case = True
            return
        self._groups.append((len(self._written), self._ignore_case))
        self._ignore_case |= text == "(?i:"
        self._written.append("(?:" if text in ("(", "(?i:") else text)

    def _quantify(self, text: str, atom: int) -> None:
        if not text.endswith("+") or len(text) == 1:
            self._written.append(text)
            return
        name = f"p{self._possessives}"
        self._possessives += 1
        repeated = "".join(self._written[atom:]) + text[:-1]
        self._written[atom:] = [f"(?=(?<{name}>{repeated}))\\k<{name}>"]

    def _atom(self, kind: str, text: str) -> str:
        if kind == "escape" and text[1] in "wW":
            return f"[{'^' if text[1] == 'W' else ''}{_CLASSES['w']}]"
        if kind != "literal":
            return self._class_part(kind, text)
        if text in ".$":
            return r"[^\n]" if text == "." else r"(?![\s\S])"
        if text in "^{}]":
            raise UntranslatedPatternError(text)
        if text == "|":
            return text
        letters = self._cases(text)
        return letters if len(letters) == 1 else f"[{letters}]"

    def _set(self) -> str:
        parts = ["["]
        while self._place < len(self._tokens):
            kind, text = self._tokens[self._place]
            self._place += 1
            if text == "]":
                return "".join(parts) + "]"
            if "[" in text or text == "&" == parts[-1]:
                raise UntranslatedPatternError("a set inside a set")
            if kind in ("group", "quantifier"):
                parts += [f"\\x{ord(letter):02x}" if letter in "()?{}" else letter for letter in text]
            elif kind == "literal":
                if text == "-" and self._ignore_case:
                    raise UntranslatedPatternError("a range where case is ignored")
                parts.append(self._cases(text))
            else:
                parts.append(self._class_part(str(kind), text))
        raise UntranslatedPatternError("an open set")

    def _class_part(self, kind: str, text: str) -> str:
        if kind == "property":
            return _property(text)
        if kind == "code":
            code = int(text[2:].strip("{}"), 16)
            return f"\\u{{{code:x}}}"
        letter = text[1]
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in "SD":
            return _CLASSES[letter.lower()].replace("p", "P", 1)
        if letter in _CONTROLS:
            return text
        if letter.isalnum():
            raise UntranslatedPatternError(text)
        return f"\\x{ord(letter):02x}" if ord(letter) < 128 else letter

    def _cases(self, letter: str) -> str:
        if not self._ignore_case or letter.lower() == letter.upper():
            return letter
        if not letter.isascii():
            raise UntranslatedPatternError(f"{letter!r} where case is ignored")
        return letter.lower() + letter.upper() + _FOLDED.get(letter.lower(), "")


def _property(text: str) -> str:
    name = text[2:].strip("{}")
    negated = (text[1] == "P") != name.startswith("^")
    name = name.removeprefix("^")
    if name in _SCRIPTS:
        name = f"Script={name}"
    elif not _CATEGORY.fullmatch(name):
        raise UntranslatedPatternError(text)
    return f"\\{'P' if negated else 'p'}{{{name}}}"
