"""The calculator, the one tool that the assistant calls.

It has a parser of its own: `ast` and simpleeval follow Python, which rejects `007` and accepts `9**9**9` and `1_0`.
"""

import operator
import re
from fractions import Fraction

MAX_LENGTH = 200  # characters; limits the digits of the result and the time
MAX_DEPTH = 20  # nested parentheses
DECIMALS = 6

_TOKEN = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+|[-+*/()]")
_OPERATORS = (  # those of a later line bind tighter
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.truediv},
)


def calculate(expression: str) -> str:
    """The value of an expression of numbers, `+ - * / ( )` and signs, or an error message; never raises.

    `2*(3+4)` gives `14`, `1/3` gives `0.333333`, `1/0` gives `error: division by zero`, and `two` gives
    `error: not arithmetic`. The calculation is exact; the result is rounded to DECIMALS decimals.
    """
    if len(expression) > MAX_LENGTH:
        return f"error: longer than {MAX_LENGTH} characters"
    try:
        return _format(_parse(expression))
    except ZeroDivisionError:
        return "error: division by zero"
    except ValueError:
        return "error: not arithmetic"


def _parse(expression: str) -> Fraction:
    tokens = ["", *reversed(_TOKEN.findall(expression))]  # the next one last, and "" after all
    if _TOKEN.sub("", expression).strip():
        raise ValueError("something else than tokens")
    value = _value(tokens)
    if len(tokens) > 1:
        raise ValueError("more than one expression")
    return value


def _value(tokens: list[str], level: int = 0, depth: int = 0) -> Fraction:
    """The value of the operators of a level, whose tokens are removed. Raises ValueError where there is none."""
    if level == len(_OPERATORS):
        return _operand(tokens, depth)
    value = _value(tokens, level + 1, depth)
    while operation := _OPERATORS[level].get(tokens[-1]):
        tokens.pop()
        value = operation(value, _value(tokens, level + 1, depth))
    return value


def _operand(tokens: list[str], depth: int) -> Fraction:
    """The value of a number or of parentheses, with the signs before it."""
    token = tokens.pop()
    if token in ("+", "-"):
        return _operand(tokens, depth) * (-1 if token == "-" else 1)
    if token == "(" and depth < MAX_DEPTH:
        value = _value(tokens, depth=depth + 1)
        if tokens.pop() == ")":
            return value
    return Fraction(token)  # raises ValueError for all but numbers: a ( not closed, a ) too many, the end


def _format(value: Fraction) -> str:
    scaled = round(value * 10**DECIMALS)
    whole, rest = divmod(abs(scaled), 10**DECIMALS)
    return f"{'-' if scaled < 0 else ''}{whole}.{rest:0{DECIMALS}}".rstrip("0").rstrip(".")
