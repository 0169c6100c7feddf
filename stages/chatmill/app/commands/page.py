"""Writes a page that is one file: a model, the server's chat page, and the program that runs the model in a browser.

Each module of JavaScript becomes a function, its imports calls of `$load`, and its exports what it returns:

    import { a } from "./x.js";      const { a } = await $load("shared/x.js");
    export function b() {}           function b() {}  …  return { b };
"""

import argparse
import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from chatmill.app import arguments
from chatmill.app.named_models import MODEL_FOLDERS, default_model, fetch_model
from chatmill.app.page.content import read_content, weights_text

# Modules of JavaScript as one script, which loads them by their names.

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


# A page that is one file: a model, the chat page of the server, and the program that runs the model in a browser.

SERVER = files("chatmill.app.server").joinpath("static")
PAGE = files("chatmill.app.page").joinpath("static")
VENDORED = "vendor/markdown-it.esm.min.mjs"
LICENCES = ("vendor/markdown-it.LICENSE", "vendor/markdown-it.bundled.LICENSES")
START = """
if (typeof document === "undefined") $load("page/backend.js").then(({ serve }) => serve());
else $load("chat/chat.js");"""
FROM_SERVER, IN_FILE = "all of which comes from this server", "all of which is in this file"


def build_page(model: Path, name: str) -> bytes:
    """The page of a model, the same bytes each time.

    Raises ValueError for a model that is damaged, or that a page cannot run.
    """
    content = read_content(model, name)
    script = program()
    style = _asset("shared/style.css") + _asset("chat/chat.css")
    body = re.search(r"<body.*(?=</body>)", _asset("chat/chat.html"), re.DOTALL)
    assert body and FROM_SERVER in body[0], "chat.html has changed"
    page = Template(PAGE.joinpath("page.html").read_text("utf-8")).substitute(
        history=content.fingerprint[:16],
        name=escape(name),
        licences="".join(map(_asset, LICENCES)).replace("--", "- -"),
        script=script,
        script_hash=_hash(script),
        style=style,
        style_hash=_hash(style),
        body=body[0].replace(FROM_SERVER, IN_FILE),
        # `<` is written so that no text in it ends or begins markup
        content=json.dumps(content.description, separators=(",", ":")).replace("<", "\\u003c"),
        kernel=base64.b64encode(PAGE.joinpath("kernel.wasm").read_bytes()).decode(),
        weights=weights_text(content.weights),
    )
    return page.encode()


def program() -> str:
    """The script of the page, which is also that of its worker."""
    folders = {"chat": SERVER.joinpath("chat"), "page": PAGE, "shared": SERVER.joinpath("shared")}
    files = [(name, file) for name, folder in folders.items() for file in folder.iterdir() if file.name.endswith(".js")]
    modules = {f"{name}/{file.name}": file.read_text("utf-8") for name, file in files}
    modules = {name: modules[name] for name in sorted(modules) if name != "shared/api.js"}
    modules[VENDORED] = _asset(VENDORED)
    return bundle(modules, {"shared/api.js": "page/client.js"}, START)


def _asset(name: str) -> str:
    return SERVER.joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Write a page that is one file: a model, and all that a browser needs to chat with it.

EPILOG = """examples:
  chatmill page --model data/export/onnx -o chat.html
  chatmill page --model ~/models/SmolLM2-135M-Instruct -o smollm.html --name SmolLM2

The page opens from disk, or from any static host, and connects to nothing. Its
weights are int8. A model that is larger than browsers open, or of another shape
than Llama, Mistral, Qwen2 and Qwen3, is refused with the reason.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--model", help=f"folder of a model, or an experiment (default: {MODEL_FOLDERS[0]})")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="the page to write; an older one is replaced")
    add("--name", help="the model's name on the page (default: that of its folder, or chatmill)")


def run(options: argparse.Namespace) -> None:
    if options.output.is_dir():
        raise ValueError(f"{options.output}: is a folder: name a file, such as chat.html")
    if not options.output.absolute().parent.is_dir():
        raise ValueError(f"{options.output.parent}: no such folder")
    given = options.model or default_model()
    with fetch_model(given) as model:
        own = Path(given) in MODEL_FOLDERS
        name = options.name or ("chatmill" if own else Path(given).absolute().name)
        page = build_page(model, name)
    with arguments.new_output(options.output, replaces=True) as place:
        place.write_bytes(page)
    print(f"{options.output}: {len(page) / 1e6:,.1f} MB")
