r"""The files with which transformers and similar libraries load a tokenizer and render conversations.

The Jinja template renders the same text as chatmill.conversation.template, including `<|bos|>`. A calculator call is
rendered as its expression, other calls as JSON; a result of the role `tool` is part of the assistant's turn. Message
text is escaped, because these libraries take a control token's name in text for the token.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from chatmill.conversation.chatml import BOS, CALL_END, CALL_START, IM_END, IM_START, OUTPUT_END, OUTPUT_START, PAD
from chatmill.conversation.template import MARKERS, TemplateName
from chatmill.tokenizer.vocabulary.tokenizer_folder import DESCRIPTION, SENTENCEPIECE_MODEL, TOKENIZER_JSON

SPECIAL_TOKEN_NAMES = {  # for each, the first of these tokens that the tokenizer has
    "bos_token": (BOS, "<s>", "<|begin_of_text|>"),
    "eos_token": (IM_END, "</s>", "<|eot_id|>", "<|endoftext|>"),
    "pad_token": (PAD, "<pad>", "[PAD]"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]",),
}
_TURNS = r"""
{%- macro escape(text) -%}
    {{- text | replace('<\\', '<\\\\') | replace('<|', '<\\|') -}}
{%- endmacro -%}
{%- macro said(message) -%}
    {%- if message.content is string -%}
        {{- escape(message.content) -}}
    {%- elif message.content -%}
        {%- for part in message.content -%}{{- escape(part.text) -}}{%- endfor -%}
    {%- endif -%}
    {%- for call in message.tool_calls or [] -%}
        {%- set function = call.function or call -%}
        {%- if function.name == 'calculator' and function.arguments.expression is defined -%}
            {%- set text = function.arguments.expression -%}
        {%- else -%}
            {%- set text = {'name': function.name, 'arguments': function.arguments} | tojson -%}
        {%- endif -%}
        {{- 'CALL_START' + escape(text) + 'CALL_END' -}}
    {%- endfor -%}
{%- endmacro -%}
{{- bos_token -}}
{%- for message in messages -%}
    {%- set next = loop.nextitem.role if loop.nextitem is defined else '' -%}
    {%- set previous = loop.previtem.role if loop.previtem is defined else '' -%}
    {%- if message.role == 'tool' -%}
        {%- if previous not in ['assistant', 'tool'] -%}
            {{- raise_exception('a tool result without its call') -}}
        {%- endif -%}
        {{- 'OUTPUT_START' + said(message) + 'OUTPUT_END' -}}
    {%- elif message.role not in ['system', 'user', 'assistant'] -%}
        {{- raise_exception('unknown role ' + message.role) -}}
    {%- elif message.role == 'assistant' and previous == 'tool' -%}
        {{- said(message) -}}
    {%- else -%}
        TURN
    {%- endif -%}
    {%- set following = next or ('assistant' if add_generation_prompt else '') -%}
    {%- if following != 'tool' and not (message.role == 'tool' and following == 'assistant') -%}
        {{- TURN_END -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and (not messages or messages[-1].role != 'tool') -%}
    {{- 'PROMPT' -}}
{%- endif -%}
"""
_PLACES: dict[TemplateName, dict[str, str]] = {
    "chatml": {
        "TURN_END": rf"'{IM_END}\n'",
        "TURN": rf"{{{{- '{IM_START}' + message.role + '\n' + said(message) -}}}}",
        "PROMPT": rf"{IM_START}assistant\n",
    },
    "markers": {
        "TURN_END": rf"'\n\n' if message.role in ['system', 'user'] else '{IM_END}\n\n'",
        "TURN": f"{{%- set text = said(message) -%}}{{{{- {MARKERS}[message.role] + (' ' if text else '') + text -}}}}",
        "PROMPT": MARKERS["assistant"],
    },
}


def chat_template(template: TemplateName) -> str:
    """The Jinja template of one of chatmill's own templates."""
    tools = {"CALL_START": CALL_START, "CALL_END": CALL_END, "OUTPUT_START": OUTPUT_START, "OUTPUT_END": OUTPUT_END}
    text = _TURNS.lstrip()
    for place, content in (_PLACES[template] | tools).items():
        text = text.replace(place, content)
    return text


def write_huggingface(tokenizer_folder: Path, out: Path, template: TemplateName) -> None:
    """Copy a tokenizer's files and add those of transformers, with a chat template if it has chat tokens."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (TOKENIZER_JSON, DESCRIPTION, SENTENCEPIECE_MODEL):
        if (tokenizer_folder / name).exists():
            shutil.copyfile(tokenizer_folder / name, out / name)
    special = json.loads((tokenizer_folder / DESCRIPTION).read_text(encoding="utf-8"))["controls"]
    names = {
        role: next((name for name in known if name in special), None) for role, known in SPECIAL_TOKEN_NAMES.items()
    }
    names = {role: name for role, name in names.items() if name is not None}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | names
    if IM_START in special:
        jinja = config["chat_template"] = chat_template(template)
        (out / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    _write_json(out / "tokenizer_config.json", config)
    _write_json(out / "special_tokens_map.json", names)


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
