"""The content of one message: text, parts of text, and calls of tools."""

import json
from collections.abc import Mapping
from typing import Any

from chatmill.datasets.formats import json_document
from chatmill.datasets.formats.example import UnusableRowError, describe_value, list_of, num_bytes, text_of
from chatmill.datasets.formats.mapping import value_at

TRAIN_FIELDS = ("weight", "train")  # of OpenAI's and of other messages
FIELDS = ("tool_calls", *TRAIN_FIELDS)  # that are read where a message has them


def read_content(content: Any, *, field: str = "content") -> tuple[str, list[str]]:
    """The text of a message, and the calls in it: from text, or a list of `{"type": "text", "text": …}`."""
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise UnusableRowError("not_text", f"{field}: expected text, got {describe_value(content)}")
    texts: list[str] = []
    calls: list[str] = []
    for part in content:
        kind = text_of(part, "type")
        if kind in ("text", "tool_call"):
            (texts if kind == "text" else calls).append(text_of(part, "text" if "text" in part else "value"))
        elif kind != "reasoning":
            raise UnusableRowError("not_text", f"{field} of type {kind[:40]!r}: expected text")
    return "".join(texts), calls


def check_text(value: Any, column: str) -> str:
    """A text. Raises UnusableRowError for null and all else that is none."""
    if not isinstance(value, str):
        raise UnusableRowError("not_text", f"{column}: expected text, got {describe_value(value)}")
    return value


def content_bytes(content: Any) -> int:
    """The bytes of text in any content, readable or not."""
    if isinstance(content, list):
        return sum(content_bytes(part.get("text", part.get("value"))) for part in content if isinstance(part, dict))
    return num_bytes(content) if isinstance(content, str) else 0


def tool_calls(message: Mapping[str, Any]) -> list[str]:
    """The calls in OpenAI's `tool_calls`: the expression of a calculator's, and JSON of any other."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise UnusableRowError("bad_call", f"tool_calls: expected a list, got {describe_value(calls)}")
    return [_call(call) for call in calls]


def _call(call: Any) -> str:
    function: Any = call.get("function", call) if isinstance(call, dict) else None
    name, arguments = text_of(function, "name"), function.get("arguments", "{}")
    values = parse_json(arguments, f"the arguments of {name[:40]!r}") if isinstance(arguments, str) else arguments
    expression = values.get("expression") if name == "calculator" and isinstance(values, dict) else None
    if isinstance(expression, str):
        return expression
    return json.dumps({"name": name, "arguments": values}, ensure_ascii=False)


def tool_names(tools: Any) -> list[str]:
    """The names in a list of descriptions of tools, or in JSON of one."""
    if isinstance(tools, str):
        tools = parse_json(tools, "tools") if tools.strip() else []
    if not tools:
        return []
    found = list_of({"tools": tools}, "tools")
    return [text_of(tool.get("function", tool) if isinstance(tool, dict) else tool, "name") for tool in found]


def is_trained(message: Mapping[str, Any], field: str | None) -> bool | None:
    """Whether a message is trained; None where it does not say. Raises UnusableRowError unless it is 0 or 1."""
    name = field or next((name for name in TRAIN_FIELDS if name in message), None)
    value = value_at(message, name, None) if name else None
    if value is None:
        return None
    if value not in (0, 1):
        raise UnusableRowError("bad_flag", f"{name}: expected true or false, or 1 or 0, got {value!r:.40}")
    return bool(value)


def parse_json(text: str, what: str) -> Any:
    """The value of JSON text. Raises UnusableRowError."""
    try:
        return json_document.parse_json(text)
    except ValueError as error:
        raise UnusableRowError("bad_call", f"{what}: not JSON: {error}") from error
