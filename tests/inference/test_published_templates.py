"""Chat templates of published models, in the ways in which such programs are written."""

from random import Random

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from chatmill.conversation import LossKind, Message
from chatmill.inference.chat_template import layout_of, open_template
from chatmill.inference.jinja_program import JinjaProgram

CONTROLS = {"<|im_start|>": 0, "<|im_end|>": 1, "<s>": 2, "</s>": 3, "[INST]": 4, "[/INST]": 5}
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TURN = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
PROGRAMS = {
    "default system prompt": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}" + TURN + "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "blocks on lines": """{%- for message in messages %}
    {%- if message.role == 'user' %}
<|im_start|>user
{{ message.content | trim }}<|im_end|>
    {%- else %}
<|im_start|>{{ message.role }}
{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
    {%- endif %}
{% endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}""",
    "earlier thoughts dropped": "{%- set ns = namespace(last=messages|length - 1) -%}{% for message in messages %}"
    "{%- set content = message.content -%}{%- if message.role == 'assistant' and loop.index0 < ns.last -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}{% endfor %}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}",
    "system in the first question": "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = "
    "messages[0].content + '\\n\\n' %}{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = "
    "messages %}{% endif %}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% if m.role == 'user' %}{{ '[INST] ' + (system if "
    "loop.first else '') + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
}
WORDS = ("hello", "2*3?", " a ", "\n", "<think>no</think>", "naïve café", "</s", "{{ 7 }}", "'\"\\", "中文")


def talks(number):
    random = Random(1)
    for _ in range(number):
        texts = ["".join(random.choices(WORDS, k=random.randint(1, 5))).strip() or "x" for _ in range(6)]
        turns = [Message.from_text(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
        yield [*[Message.from_text("system", texts[5])] * random.randint(0, 1), *turns[: random.choice((1, 3, 5))]]


def opened(name):
    return open_template(PROGRAMS[name], CONTROLS, names=NAMES)


def text(segments):
    return "".join(segment.text for segment in segments)


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_are_those_of_transformers(name):
    template = opened(name)
    for talk in talks(500):
        messages = [{"role": message.role, "content": message.text} for message in talk]
        given = {"chat_template": PROGRAMS[name], "add_generation_prompt": True, **NAMES}
        expected = render_jinja_template([messages], **given)[0][0]
        assert text(template.prompt(talk)) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_are_trained_with_their_end_and_nothing_else(name):
    segments = opened(name).full_conversation([asked("Hi"), answer("Yes. "), asked("Why?")])
    trained = text(segment for segment in segments if segment.loss == LossKind.TRAINED)
    assert trained in ("Yes.<|im_end|>", "Yes.</s>")
    assert "Why?" in text(segment for segment in segments if segment.loss == LossKind.PROMPT)


def answer(words):
    return Message.from_text("assistant", words)


def asked(words):
    return Message.from_text("user", words)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_typed_is_text(name):
    template = opened(name)
    plain, typed = (template.prompt([asked(words)]) for words in ("a", "a <|im_end|></s>\ufdd3[INST]"))
    assert [one.text for one in typed if one.control] == [one.text for one in plain if one.control]
    assert "a <|im_end|></s>\ufffd[INST]" in text(typed)


def test_an_answer_is_trained_where_its_thoughts_were_dropped():
    segments = opened("earlier thoughts dropped").full_conversation(
        [asked("Hi"), answer("<think>A question.</think>\n\nYes."), asked("Why?")]
    )
    assert text(segment for segment in segments if segment.loss == LossKind.TRAINED) == "Yes.<|im_end|>"


def test_a_template_that_changes_earlier_answers_has_no_layout():
    assert {name: layout_of(opened(name)) is None for name in PROGRAMS} == {
        name: name in ("earlier thoughts dropped",) for name in PROGRAMS
    }


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "does not end"),
        ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", "does not end"),
        ("{% set s = namespace(t='a') %}{% for i in range(50) %}{% set s.t = s.t + s.t %}{% endfor %}", "more than 2"),
        ("{% set s = namespace(t='a') %}{% for i in range(60) %}{% set s.t = s.t ~ s.t %}{% endfor %}", "more than 2"),
        ("{% set s = 'a' * 9999999 %}{{ s.replace('a', s) }}", "more than 20,000,000"),
        ("{% set s = 'a' * 9999999 %}{{ s | replace('a', s) }}", "more than 20,000,000"),
        ("{{ 'a' * 999999999999 }}", "more than 20,000,000"),
        ("{{ 'a'.ljust(999999999999) }}", "more than 20,000,000"),
        ("{{ 9 ** 99999999 }}", "a power of a large number"),
        ("{{ '%0999999999d' % 1 }}", "not run here"),
        ("{{ '{:>999999999}'.format(1) }}", "not run here"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception('Only users may ask') }}", "Only users may ask"),
        ("{{ messages[0].content.x.y }}", "has no attribute"),
        ("{% for x in messages %}", "is not Jinja: Unexpected end of template"),
    ],
)
def test_a_program_that_fails_gets_one_line(program, problem):
    with pytest.raises(ValueError, match=problem) as found:
        JinjaProgram(program, NAMES).render([{"role": "user", "content": "a"}])
    assert "\n" not in str(found.value)


def test_thoughts_in_answers_are_tokens_and_in_questions_text():
    controls = {**CONTROLS, "<think>": 6, "</think>": 7}
    flags = {name: {"special": False} for name in ("<think>", "</think>")}
    template = open_template(PROGRAMS["earlier thoughts dropped"], controls, names=NAMES, flags=flags)
    segments = template.full_conversation([asked("<think>Hi"), answer("<think>Well</think>Yes.")])
    assert [one.text for one in segments if one.control and "think" in one.text] == ["<think>", "</think>"]
