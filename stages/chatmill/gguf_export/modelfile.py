"""The Modelfile of ollama: the weights, the chat template in Go's syntax, and where answers end.

FROM ./model-q8_0.gguf
TEMPLATE \"\"\"<|bos|>{{ range .Messages }}{{ if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ end }}{{ end }}<|im_start|>assistant
\"\"\"
PARAMETER stop "<|im_end|>"
PARAMETER temperature 0
"""

import json
from collections.abc import Iterable

from chatmill.conversation.chatml import ROLES, Message
from chatmill.conversation.template import Segment
from chatmill.inference.chat_template import ChatTemplate

SYSTEM, CONTENT = "SYSTEM", "CONTENT"  # stand for the texts of messages
NOTE = "# Go's templates cannot escape text: a control token's name in a message is taken for the token.\n"


def modelfile(weights: str, template: ChatTemplate | None, stop: Iterable[str]) -> str:
    """The file's content; without a template, ollama takes the one of the GGUF file."""
    lines = f"FROM ./{weights}\n"
    if template is not None:
        lines += f'{NOTE}TEMPLATE """{go_template(template)}"""\n'
    lines += "".join(f"PARAMETER stop {json.dumps(text, ensure_ascii=False)}\n" for text in stop)
    return f"{lines}PARAMETER temperature 0\n"


def go_template(template: ChatTemplate) -> str:
    """The chat template in the syntax of Go, with the variables of ollama."""
    bos = _text(template.full_conversation([]))
    header = _text(template.prompt([])).removeprefix(bos)
    system, user = Message.from_text("system", SYSTEM), Message.from_text("user", CONTENT)
    texts = {role: _rendered(template, Message.from_text(role, CONTENT)) for role in ROLES}
    declared = ""
    if CONTENT not in texts["system"]:  # it is the beginning of the first user message
        declared = "{{ $system := .System }}"
        before, _, after = texts["user"].partition(CONTENT)
        first = _rendered(template, system, user).removeprefix(before).removesuffix(f"{CONTENT}{after}")
        shown = f'{{{{ if $system }}}}{first.replace(SYSTEM, "{{ $system }}")}{{{{ $system = "" }}}}{{{{ end }}}}'
        texts["user"] = f"{before}{shown}{CONTENT}{after}"
    cases = [f'if eq .Role "{role}" }}}}{text}' for role, text in texts.items() if CONTENT in text]
    body = "{{ " + "{{ else ".join(cases).replace(CONTENT, "{{ .Content }}") + "{{ end }}"
    return f"{declared}{bos}{{{{ range .Messages }}}}{body}{{{{ end }}}}{header}"


def _rendered(template: ChatTemplate, *conversation: Message) -> str:
    """A conversation without the token that begins it."""
    bos = _text(template.full_conversation([]))
    return _text(template.full_conversation(list(conversation))).removeprefix(bos)


def _text(segments: Iterable[Segment]) -> str:
    return "".join(segment.text for segment in segments)
