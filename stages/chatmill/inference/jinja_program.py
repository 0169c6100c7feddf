"""Runs the Jinja program that a published model has for its chats, in Jinja's sandbox, as transformers does.

The sandbox keeps a program from Python; what it does not bound is bounded here: the bodies of loops and macros that are
run, and the length of every text. Both limits are far above what a template needs.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 200_000  # bodies of loops and macros that are run for one text
MAX_LENGTH = 20_000_000  # characters or entries of anything that a program makes
MAX_EXPONENT = 64
_STEP, _JOIN = "_chatmill_step", "_chatmill_join"
_WITHOUT = "center filesizeformat format forceescape indent pprint random truncate urlencode urlize wordwrap xmlattr"
_PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs")


class JinjaProgram:
    """A compiled chat template. Raises ValueError with Jinja's message if the source is not a Jinja template."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """`tokens` has the control tokens by the names that the program uses for them, such as bos_token."""
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except (TemplateError, RecursionError, ValueError, OverflowError) as error:
            raise ValueError(f"its chat template is not Jinja: {_line(error)}") from error
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text of messages. Raises ValueError with the program's own message, or the limit that it exceeds."""
        parts, length, run_step = list[str](), 0, _counter()
        given: dict[str, Any] = {**self._tokens, "tools": None, "documents": None, **variables, _STEP: run_step}
        try:
            for part in self._template.generate(messages=messages, **given):
                length += len(part)
                _check(length)
                parts.append(part)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ValueError(f"its chat template stops with: {_line(error)}") from error
        except (RecursionError, MemoryError) as error:
            raise ValueError("its chat template calls itself without end") from error
        return "".join(parts)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _counter() -> Callable[[], str]:
    steps = iter(range(MAX_STEPS))

    def step() -> str:
        if next(steps, None) is None:
            raise TemplateError(f"more than {MAX_STEPS:,} steps: it does not end")
        return ""

    return step


def _check(length: int) -> None:
    if length > MAX_LENGTH:
        raise TemplateError(f"a text of more than {MAX_LENGTH:,} characters")


class _Generation(Extension):
    """The tag by which some templates mark what the model writes; it changes no text."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Limits(NodeTransformer):
    """Each body that may run many times counts a step, and each `~` checks its length."""

    def visit_For(self, node: Any) -> nodes.Node:
        node.body.insert(0, nodes.ExprStmt(_call(_STEP, [], node.lineno), lineno=node.lineno))
        return self.generic_visit(node)

    visit_Macro = visit_CallBlock = visit_For

    def visit_Concat(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return _call(_JOIN, [nodes.List(node.nodes)], node.lineno)


def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load", lineno=line), arguments, [], None, None, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Limits().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is not None:
            raise TemplateError("a text formatted by format, which is not run here")
        return None

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if hasattr(side, "__len__") else None for side in (left, right)]
        match operator:
            case "+":
                _check(sum(size or 0 for size in sizes))
            case "*":
                known = [size for size in sizes if size is not None]
                times = [side for side in (left, right) if isinstance(side, int)]
                _check(known[0] * times[0] if known and times else 0)
            case "**" if isinstance(right, int) and abs(right) > MAX_EXPONENT:
                raise TemplateError("a power of a large number")
            case "%" if isinstance(left, str):
                raise TemplateError("a text formatted by %, which is not run here")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        text, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(text, str):
            if name in _PADDING:
                _check(max((number for number in args if isinstance(number, int)), default=0))
            elif name == "replace" and len(args) >= 2:
                _check_replaced(text, *args[:2])
            elif name == "join" and args:
                args = ([*args[0]], *args[1:])
                _check(len(text) * len(args[0]) + sum(map(len, args[0])))
        return super().call(context, called, *args, **kwargs)


def _check_replaced(text: str, old: Any, new: Any) -> None:
    _check(len(text) + text.count(str(old)) * len(str(new)))


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=min(indent, 16) if indent else indent, **options)


# Jinja's own filters `replace` and `join`, with a limit


def _replaced(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    _check_replaced(str(text), old, new)
    return str(text).replace(str(old), str(new), -1 if count is None else count)


def _joined(values: Iterable[Any], between: Any = "", attribute: str | int | None = None) -> str:
    get = str if attribute is None else make_attrgetter(_ENVIRONMENT, attribute, postprocess=str)
    parts = [get(value) for value in values]
    _check(len(str(between)) * len(parts) + sum(map(len, parts)))
    return str(between).join(parts)


_ENVIRONMENT = _Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension], optimized=False
)
_ENVIRONMENT.filters = {name: run for name, run in _ENVIRONMENT.filters.items() if name not in _WITHOUT.split()}
_ENVIRONMENT.filters |= {"replace": _replaced, "join": _joined, "tojson": _tojson}
_ENVIRONMENT.globals |= {
    "raise_exception": _raise,
    "strftime_now": lambda format: datetime.now().strftime(format),
    _JOIN: _joined,
}
del _ENVIRONMENT.globals["lipsum"]
