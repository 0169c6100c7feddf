"""The calculator, the one tool that the assistant calls.

It has a parser of its own: `ast` and simpleeval follow Python, which rejects `007` and accepts `9**9**9` and `1_0`.
"""

import re
from fractions import Fraction

MAX_LENGTH = 200  # characters; limits the digits of the result and the time
MAX_DEPTH = 20  # nested parentheses
DECIMALS = 6

_TOKEN = re.compile(r"\s*(?:([0-9]+\.?[0-9]*|\.[0-9]+)|([-+*/()]))")


def calculate(expression: str) -> str:
    """The value of an expression of numbers, `+ - * / ( )` and signs, or an error message; never raises.

    `2*(3+4)` gives `14`, `1/3` gives `0.333333`, `1/0` gives `error: division by zero`, and `two` gives
    `error: not arithmetic`. The calculation is exact; the result is rounded to DECIMALS decimals.
    """
    if len(expression) > MAX_LENGTH:
        return f"error: longer than {MAX_LENGTH} characters"
    try:
        return _format(_Parser(expression).parse())
    except ZeroDivisionError:
        return "error: division by zero"
    except _ExpressionError:
        return "error: not arithmetic"


class _ExpressionError(Exception):
    """The text is not an expression."""


class _Parser:
    def __init__(self, expression: str) -> None:
        self.tokens: list[str | Fraction] = []  # the next one last
        self.depth = 0
        text = expression.rstrip()
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _ExpressionError
            self.tokens.append(Fraction(match[1]) if match[1] else match[2])
            position = match.end()
        self.tokens.reverse()

    def parse(self) -> Fraction:
        value = self._sum()
        if self.tokens:
            raise _ExpressionError
        return value

    def _accept(self, *symbols: str) -> str | None:
        token = self.tokens[-1] if self.tokens else None
        if not isinstance(token, str) or token not in symbols:
            return None
        self.tokens.pop()
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while symbol := self._accept("+", "-"):
            value = value + self._product() if symbol == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while symbol := self._accept("*", "/"):
            value = value * self._factor() if symbol == "*" else value / self._factor()
        return value

    def _factor(self) -> Fraction:
        sign = 1
        while symbol := self._accept("+", "-"):
            sign = -sign if symbol == "-" else sign
        if self._accept("("):
            self.depth += 1
            value = self._sum() if self.depth <= MAX_DEPTH else None
            if value is None or not self._accept(")"):
                raise _ExpressionError
            self.depth -= 1
            return sign * value
        token = self.tokens.pop() if self.tokens else ""
        if isinstance(token, str):
            raise _ExpressionError
        return sign * token


def _format(value: Fraction) -> str:
    scaled = round(value * 10**DECIMALS)
    whole, rest = divmod(abs(scaled), 10**DECIMALS)
    return f"{'-' if scaled < 0 else ''}{whole}.{rest:0{DECIMALS}}".rstrip("0").rstrip(".")
