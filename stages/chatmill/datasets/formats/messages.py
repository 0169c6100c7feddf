r"""OpenAI's and Hugging Face's `messages`, in JSON lines or a JSON array.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}

Content is text, or a list of `{"type": "text", "text": …}`; a row may have a `system` text beside `messages`. Calls in
`tool_calls` and results of the role `tool` become tool use inside the assistant's turn. A call of the function
`calculator` is stored as its `expression`, any other call as JSON. Of `tools` the names are kept, as a declaration
(chatmill.conversation.chatml.declare_tools). Reasoning, descriptions of tools and loss weights are left out. Rows of
the form `{"prompt": …, "completion": …}` are read as well.
"""

import json
from collections.abc import Iterator
from typing import Any

from chatmill.conversation.chatml import Conversation, declare_tools
from chatmill.datasets.formats.example import UnusableRowError, describe_value, list_of, text_of
from chatmill.datasets.formats.turns import Step, StepKind, check_turn_count, join_tools, question_answer

_ROLES: dict[str, StepKind] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_OUTPUTS = ("tool", "function")


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises UnusableRowError."""
    if isinstance(row, dict) and "messages" not in row and "prompt" in row:
        return question_answer(text_of(row, "prompt"), text_of(row, "completion"))
    steps: list[Step] = []
    if isinstance(row, dict) and isinstance(row.get("system"), str):
        steps.append(("system", row["system"]))
    for message in list_of(row, "messages"):
        steps += _steps(message)
        check_turn_count(len(steps))
    return declare_tools(join_tools(steps), [_tool_name(tool) for tool in _tools(row)])


def _tools(row: Any) -> list[Any]:
    if isinstance(tools := row.get("tools") or [], str):
        row = {"tools": _parse_json(tools, "tools")}
    return list_of(row, "tools") if tools else []


def _tool_name(tool: Any) -> str:
    return text_of(tool.get("function", tool) if isinstance(tool, dict) else tool, "name")


def _steps(message: Any) -> Iterator[Step]:
    role = text_of(message, "role")
    calls = message.get("tool_calls") or []
    if role in _OUTPUTS:
        yield "output", _read_content(message)[0]
        return
    if role not in _ROLES:
        raise UnusableRowError(
            "unknown_role", f"unknown role {role[:40]!r}: expected one of {', '.join((*_ROLES, *_OUTPUTS))}"
        )
    text, inline = _read_content(message)
    if text or not (calls or inline):
        yield _ROLES[role], text
    yield from (("call", call) for call in inline)
    if not isinstance(calls, list):
        raise UnusableRowError("bad_call", f"tool_calls: expected a list, got {describe_value(calls)}")
    for call in calls:
        function: Any = call.get("function") if isinstance(call, dict) else None
        yield "call", _call(text_of(function, "name"), function.get("arguments", "{}"))


def _read_content(message: dict[str, Any]) -> tuple[str, list[str]]:
    """The text of a message, and the calls in its content."""
    content = message.get("content")
    if isinstance(content, str):
        return content, []
    if content is None and message.get("tool_calls"):
        return "", []
    texts: list[str] = []
    calls: list[str] = []
    for part in list_of(message, "content"):
        kind = text_of(part, "type")
        if kind in ("text", "tool_call"):
            (texts if kind == "text" else calls).append(text_of(part, "text" if "text" in part else "value"))
        elif kind != "reasoning":
            raise UnusableRowError("not_text", f"content of type {kind[:40]!r}: expected text")
    return "".join(texts), calls


def _parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableRowError("bad_call", f"{what}: not JSON: {error}") from error


def _call(name: str, arguments: Any) -> str:
    values = _parse_json(arguments, f"the arguments of {name[:40]!r}") if isinstance(arguments, str) else arguments
    expression = values.get("expression") if name == "calculator" and isinstance(values, dict) else None
    if isinstance(expression, str):
        return expression
    return json.dumps({"name": name, "arguments": values}, ensure_ascii=False)
