import re

import pytest

from chatmill.conversation import CONTROL_TOKENS, Message
from chatmill.gguf_export.gguf_files import go_template, modelfile
from chatmill.inference.chat_template import CHATMILL_TEMPLATES, layout_of, open_template
from chatmill.inference.template_layout import known_layouts

CHATML = """<|bos|>{{ range .Messages }}{{ if eq .Role "system" }}<|im_start|>system
{{ .Content }}<|im_end|>
{{ else if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ .Content }}<|im_end|>
{{ end }}{{ end }}<|im_start|>assistant
"""
SPECIAL = dict.fromkeys([*CONTROL_TOKENS, "<s>", "</s>", "<|eot_id|>", "<end_of_turn>", "<|end|>"], 0)
TALK = [
    Message.from_text("system", "Be brief."),
    Message.from_text("user", "Hi"),
    Message.from_text("assistant", "Hello!"),
    Message.from_text("user", "How are you?"),
]


def render(template, conversation):
    """What Go makes of a template with these few actions: a range, its cases, and a variable that is emptied."""
    head, body, end = re.fullmatch(
        r"(.*?)\{\{ range \.Messages \}\}(.*)\{\{ end \}\}\{\{ end \}\}(.*)", template, re.DOTALL
    ).groups()
    system = next((message.text for message in conversation if message.role == "system"), "")
    parts = re.split(r'\{\{ (?:else )?if eq \.Role "(\w+)" \}\}', body)
    cases = dict(zip(parts[1::2], parts[2::2], strict=True))
    rest, text = (system if head.startswith("{{ $system := .System }}") else ""), ""
    for message in conversation:
        shown = cases.get(message.role, "")
        shown = re.sub(
            r"\{\{ if \$system \}\}(.*?)\{\{ \$system = \"\" \}\}\{\{ end \}\}",
            lambda found, rest=rest: found[1].replace("{{ $system }}", rest) if rest else "",
            shown,
            flags=re.DOTALL,
        )
        rest = "" if message.role == "user" else rest
        text += shown.replace("{{ .Content }}", message.text)
    return head.removeprefix("{{ $system := .System }}") + text + end


@pytest.mark.parametrize("conversation", [TALK, TALK[1:], TALK[:2], TALK[1:2]])
@pytest.mark.parametrize(
    "name", [*CHATMILL_TEMPLATES, *(name for name in known_layouts("") if name not in CHATMILL_TEMPLATES)]
)
def test_it_renders_what_chatmill_renders(name, conversation):
    template = open_template("", SPECIAL, name=name, bos="" if name in CHATMILL_TEMPLATES else "<s>")
    expected = "".join(segment.text for segment in template.prompt(conversation))
    assert render(go_template(layout_of(template)), conversation) == expected


def test_the_file_names_weights_template_and_stop_tokens():
    lines = modelfile(
        "model-q8_0.gguf", layout_of(CHATMILL_TEMPLATES["chatml"]), ["<|im_end|>", "\nHuman:"]
    ).splitlines()
    assert lines[0] == "FROM ./model-q8_0.gguf"
    assert lines[1].startswith("# ") and lines[2] == f'TEMPLATE """{CHATML.splitlines()[0]}'
    assert lines[-4:] == ['"""', 'PARAMETER stop "<|im_end|>"', r'PARAMETER stop "\nHuman:"', "PARAMETER temperature 0"]


def test_a_template_that_is_not_known_is_left_to_the_gguf_file():
    assert modelfile("model-f32.gguf", None, []) == "FROM ./model-f32.gguf\nPARAMETER temperature 0\n"
