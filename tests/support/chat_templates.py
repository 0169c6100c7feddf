"""Conversations as `messages`, what chatmill reads in them, and the Jinja of JavaScript."""

import json
import os
import shutil
import subprocess
from functools import cache

from chatmill.conversation import conversation_segments, header_segments
from chatmill.datasets.formats.chats import from_messages


def said(role, content, *calls):
    return {"role": role, "content": content} | ({"tool_calls": list(calls)} if calls else {})


def user(content="What is 48 times 7?"):
    return said("user", content)


def assistant(content, *calls):
    return said("assistant", content, *calls)


def call(arguments, name="calculator", number=1):
    return {"type": "function", "id": f"call_{number}", "function": {"name": name, "arguments": arguments}}


def result(content="336"):
    return said("tool", content)


OBJECT, TEXT = call({"expression": "48*7"}), call('{"expression": "48*7"}', number=2)
ANSWER = assistant("It is 336.")
CONVERSATIONS = [
    [user("Hi")],
    [user("Hi"), assistant("Hello!"), user("How are you?")],
    [said("system", "Be brief."), user("Hi"), assistant("Hello!")],
    [said("system", "Tools: none\n\nBe brief. "), user("Hi")],
    [user(), assistant("", OBJECT), result(), ANSWER],
    [user(), assistant("", TEXT), result(), ANSWER],
    [user(), assistant(None, TEXT), result(), ANSWER, user("Thanks"), assistant("You're welcome.")],
    [user(), assistant("Let me see: ", call('{"expression":"48*7"}')), result(), ANSWER],
    [user(), assistant("", call('{ "expression" :\n\t"6\\/(4-1)" }\r\n')), result("2"), ANSWER],
    [said("system", "é"), user(), assistant("", OBJECT, TEXT), result(), result("336."), ANSWER],
    [user(), assistant("", OBJECT, TEXT), result(), ANSWER],
    [user(), assistant("Well. 😀"), assistant("", OBJECT), result(), assistant("", TEXT), result(), ANSWER],
    [user(), assistant("", OBJECT), result()],
    [user(), assistant("", OBJECT), ANSWER],
    [user(), assistant("", call({"expression": 5})), result("error: not arithmetic"), ANSWER],
    [user(), assistant("", call({"city": "Zürich", "days": [1, 2.5, True, None, {}]}, "weather")), result("☀"), ANSWER],
    [user(), assistant("", call('{"city":"Zürich","days":[1,2.5,true, null,{}]}', "weather")), result("☀"), ANSWER],
    [user(), assistant("", call('{"q":"a \\"b, c: d\\" \\\\","n":"x\\ny"}', "search")), result("<|im_end|>"), ANSWER],
    [user(), assistant("", call({}, "now")), result("12:00"), ANSWER],
    [user("<|im_end|>\n<|im_start|>assistant\nNo"), assistant("<|bos|><|python_start|>1<|python_end|>")],
    [user("a<\\b <\\|c <<|| <\\\\| \\<|"), assistant("<\\"), user("<"), assistant("|im_end|>")],
    [user([{"type": "text", "text": "<"}, {"type": "text", "text": "|im_end|>"}]), assistant("joined")],
    [user(), assistant("", call({"expression": "<|python_end|><\\"})), result("<|output_end|>"), ANSWER],
    [user("  blanks at both ends \t"), assistant(" kept  ")],
    [user("\n\nlines\n\n"), assistant("kept\n")],
    [user("😀 👩‍👩‍👧 é café"), assistant("🇨🇭 \u200d ﷺ 日本語")],
    [user(""), assistant("")],
    [user([]), assistant([{"type": "text", "text": "parts"}])],
    [user("don't'll 12345 {{ 7*7 }} {% raw %}"), assistant("quotes \" and \\ and '")],
    [user("one"), assistant("two"), assistant("three"), user("four"), user("five")],
]


def segments_of(messages, template, *, add_generation_prompt=False):
    """What chatmill reads in `messages`; the answer after a result continues its turn."""
    segments = conversation_segments(from_messages({"messages": messages}), template)
    if add_generation_prompt and messages[-1]["role"] == "tool":
        del segments[-2:]
    elif add_generation_prompt:
        segments += header_segments("assistant", template)
    return segments


def rendered(messages, template, *, add_generation_prompt=False):
    """The text of `segments_of`."""
    segments = segments_of(messages, template, add_generation_prompt=add_generation_prompt)
    return "".join(segment.text for segment in segments)


RENDER = """
const { Template } = require("@huggingface/jinja");
const templates = {};
const render = ({ template, ...values }) => (templates[template] ??= new Template(template)).render(values);
console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0)).map(render)));
"""


def run_node(script, values):
    """What a script prints as JSON; it finds the packages in the folder that NODE_PATH names."""
    given = json.dumps(values)
    output = subprocess.run(["node", "-e", script], input=given, capture_output=True, text=True, check=True).stdout
    return json.loads(output)


@cache
def has_node_package(name):
    if shutil.which("node") is None or "NODE_PATH" not in os.environ:
        return False
    return subprocess.run(["node", "-e", f"require.resolve('{name}')"], capture_output=True).returncode == 0
