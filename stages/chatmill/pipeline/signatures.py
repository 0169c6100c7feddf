"""The parameters of a stage script: files on its command line, and a section of params.yaml.

    @stage
    def main(chat: Path, tokens: Output, *, template: TemplateName) -> None:

Positional parameters are files and folders; those annotated `Output` are written, and a `GrowingOutput` is a file that
can be read while it is written. Keyword-only ones are the keys of the section that is named after the script. One
annotated `Section` is another section, complete; one called `parameters` is a model of the script's own section. A
script with `@stage(foreach="out")` runs once for each entry of its section: the one whose name is the stem of the file
`out`. The files that it reads are keys of that entry, not on the command line: the shell would interpret some names.
"""

import ast
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, create_model

Output = Annotated[Path, "output"]
GrowingOutput = Annotated[Path, "output", "grows"]
Section = Annotated[dict[str, Any], "section"]
MODEL_KEYWORD = "parameters"


@dataclass(frozen=True)
class Signature:
    """The files and parameters of a `main`; `foreach` names the file whose stem is the entry of a `foreach` stage."""

    files: dict[str, bool]  # whether each is an output, in the order of the command line
    growing: tuple[str, ...]  # outputs that can be read while they are written
    other_sections: tuple[str, ...]  # sections that it reads completely, besides its own
    model: type[BaseModel]  # of its own section
    takes_model: bool  # whether `main` takes the model instead of its single keys
    foreach: str


def signature_of(main: Callable[..., None], foreach: str = "") -> Signature:
    """The signature of a function."""
    parameters = inspect.signature(main).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    files = {p.name: _is(p.annotation, "output") for p in positional if not foreach or _is(p.annotation, "output")}
    growing = tuple(p.name for p in positional if _is(p.annotation, "grows"))
    keywords = [p for p in parameters if p.name not in files]
    others = tuple(p.name for p in keywords if _is(p.annotation, "section"))
    for parameter in keywords:
        if parameter.name == MODEL_KEYWORD:
            return Signature(files, growing, others, parameter.annotation, True, foreach)
    fields = {p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in keywords}
    own: dict[str, Any] = {name: field for name, field in fields.items() if name not in others}
    model = create_model("Section", __config__=ConfigDict(extra="forbid"), **own)
    return Signature(files, growing, others, model, False, foreach)


def _is(annotation: Any, marker: str) -> bool:
    return get_origin(annotation) is Annotated and marker in get_args(annotation)


def read_signature(script: Path) -> Signature:
    """The signature of a script's `main`; only the modules that its annotations need are imported.

    Raises ValueError where the script has no `main`.
    """
    tree = ast.parse(script.read_text(encoding="utf-8"))
    mains = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    if not mains:
        raise ValueError(f"{script}: expected a function main")
    main, namespace = mains[0], dict[str, Any](__name__=script.stem)
    options = [option for call in main.decorator_list if isinstance(call, ast.Call) for option in call.keywords]
    foreach = next((ast.literal_eval(option.value) for option in options if option.arg == "foreach"), "")
    main.body, main.decorator_list = ast.parse("pass").body, []
    statements: list[ast.stmt] = [main]
    needed = _names(main)
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in needed:
                    namespace[alias.name] = getattr(importlib.import_module(str(node.module)), alias.name)
        elif isinstance(node, ast.Assign) and _names(node) & needed:
            statements.insert(0, node)
            needed |= _names(node)
    exec(compile(ast.Module(statements, []), script, "exec"), namespace)
    return signature_of(namespace["main"], foreach)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
