"""Modules of JavaScript as one script, which loads them by their names.

Each module becomes a function, its imports calls of `$load`, and its exports what it returns:

    import { a } from "./x.js";      const { a } = await $load("shared/x.js");
    export function b() {}           function b() {}  …  return { b };
"""

import posixpath
import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import (?:\{([^}]*)\}|(\w+)) from "([^"]+)";$|^import "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*? ?|class |const )(\w+)", re.MULTILINE)
_EXPORT_LIST = re.compile(r"^export ?\{([^}]*)\};$", re.MULTILINE)
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)
_REMAINDER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_MARKUP = re.compile(r"<(?=/?script|!--)", re.IGNORECASE)  # would end or change the script in a page

LOADER = """"use strict";
(() => {
const modules = {};
const loaded = {};
const $load = (name) => (loaded[name] ??= modules[name]());
"""


def bundle(modules: Mapping[str, str], replaced: Mapping[str, str], start: str) -> str:
    """One script of the modules by name; `replaced` names others in their place; `start` runs with `$load`.

    Raises ValueError for a missing module, and for imports and exports of other forms.
    """
    functions = [
        f'modules["{name}"] = async () => {{\n{_function(name, source, modules, replaced)}\n}};\n'
        for name, source in modules.items()
    ]
    return _MARKUP.sub(r"\\x3C", "".join([LOADER, *functions, start, "\n})();\n"]))


def _function(name: str, source: str, modules: Mapping[str, str], replaced: Mapping[str, str]) -> str:
    def load(match: re.Match[str]) -> str:
        names, default, path, bare = match.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path or bare))
        target = replaced.get(target, target)
        if target not in modules:
            raise ValueError(f"{name}: imports {target}, which is not among the modules")
        bound = f"{{ default: {default} }}" if default else f"{{{(names or '').replace(' as ', ': ')}}}"
        return f'const {bound} = await $load("{target}");'

    exported: list[str] = [match[2] for match in _EXPORT.finditer(source)]
    for match in _EXPORT_LIST.finditer(source):
        for one in filter(str.strip, match[1].split(",")):
            inner, _, outer = one.strip().partition(" as ")
            exported.append(f"{outer}: {inner}" if outer else inner)
    body = _SOURCE_MAP.sub("", _EXPORT_LIST.sub("", _EXPORT.sub(r"\1\2", _IMPORT.sub(load, source))))
    if remainder := _REMAINDER.search(body):
        raise ValueError(f"{name}: unknown form of import or export: {remainder[0][:80]}")
    return f"{body}\nreturn {{ {', '.join(exported)} }};"
