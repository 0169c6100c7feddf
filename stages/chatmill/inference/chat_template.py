"""Chat templates: chatmill's own two, and those of published models, which are Jinja programs."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from chatmill.conversation import (
    IM_END,
    Conversation,
    LossKind,
    Message,
    Segment,
    TemplateName,
    conversation_segments,
    escape,
    header_segments,
    loss_of,
    message_segments,
)
from chatmill.inference.template_layout import Layout, known_layouts
from chatmill.tokenizer.vocabulary.vocabulary import WHITESPACE


@dataclass(frozen=True)
class ChatmillTemplate:
    """A template of chatmill.conversation, with which the pipeline trains its models.

    It renders a conversation as segments, each of which is encoded by itself.
    """

    name: TemplateName = "chatml"
    escapes: ClassVar[bool] = True  # whether text is escaped (chatmill.conversation.escape)
    is_chat: ClassVar[bool] = True  # whether the model was trained on chats; a base model continues text
    end_token: ClassVar[str] = IM_END  # the control token that ends an answer; "" for none
    stop: ClassVar[tuple[str, ...]] = ()  # texts that end an answer

    @property
    def answer_prefix(self) -> str:
        """Text that the model writes before each answer and that is not shown: what follows the header."""
        return " " if self.name == "markers" else ""

    def prompt(self, conversation: Conversation, *, continues: bool = False) -> list[Segment]:
        """A conversation and the header of the answer, or one whose last message, the assistant's, is continued."""
        segments = conversation_segments(conversation, self.name)
        return segments[:-2] if continues else [*segments, *header_segments("assistant", self.name)]

    def next_turn(self, message: Message) -> list[Segment] | None:
        """What follows an answer: the newline after it, the user's message, and the header of the next answer.

        None where what stands before it may change with it.
        """
        newline = message_segments(Message("assistant", ()), self.name)[-1]
        return [newline, *message_segments(message, self.name), *header_segments("assistant", self.name)]

    def full_conversation(
        self, conversation: Conversation, train: Sequence[bool | None] | None = None
    ) -> list[Segment]:
        """A complete conversation; the assistant's text is trained, unless `train` says otherwise, as in a Record."""
        return conversation_segments(conversation, self.name, train)

    def answer(self, message: Message) -> list[Segment]:
        """What follows the prompt: the assistant's message as the model writes it, without its end."""
        return message_segments(message, self.name)[len(header_segments("assistant", self.name)) : -2]

    def text(self, text: str) -> list[Segment]:
        """A text that is no conversation, escaped as a message is, after the token that begins a conversation."""
        return [*conversation_segments([], self.name), Segment(escape(text), LossKind.PROMPT)]


CHATML = ChatmillTemplate()
CHATMILL_TEMPLATES: dict[str, ChatmillTemplate] = {"chatml": CHATML, "markers": ChatmillTemplate("markers")}


_STOP = {"markers": ("\n\nHuman:", "\nHuman:")}

# Noncharacters of Unicode, which stand in a text while a program runs
SPLIT = "\ufdd0"  # in the name of a control token that was typed, which is text
STARTS = {LossKind.IGNORED: "\ufdd1", LossKind.PROMPT: "\ufdd2", LossKind.TRAINED: "\ufdd3"}  # a message begins
END = "\ufdd4"
_KINDS = {mark: kind for kind, mark in STARTS.items()}
_RESERVED = dict.fromkeys(range(0xFDD0, 0xFDD5), "\ufffd")
_TEXT = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)  # a program may strip what is around the second


class PublishedTemplate:
    """A model's own chat template, run as transformers runs it, in the tokens of its tokenizer.

    Marks tell the texts of messages from those of the program, which are ignored in the loss. A program may drop a
    message, or its beginning, such as the thoughts before an earlier answer. Its methods are those of ChatmillTemplate.
    """

    escapes = False

    def __init__(
        self,
        name: str,
        program: Callable[..., str],
        controls: Iterable[str],
        *,
        bos: str = "",
        leading_space: bool = False,
        flags: Mapping[str, Mapping[str, bool]] = MappingProxyType({}),
    ) -> None:
        """`program` renders messages; `bos` is the control token that begins a text without roles.

        With `leading_space` the template adds one before each text, as the model's original tokenizer does. `flags` say
        which control tokens take the whitespace before or after them (lstrip, rstrip).

        Raises ValueError where the program refuses a question and its answer.
        """
        self.name, self._program, self._bos, self._space = name, program, bos, leading_space
        self._stripping = {flag: {name for name in flags if flags[name].get(flag)} for flag in ("lstrip", "rstrip")}
        controls = sorted(controls, key=len, reverse=True)
        answered = [name for name in controls if flags.get(name, {}).get("special", True)]  # not <think>
        self._names, self._names_in_answers = (
            "|".join(map(re.escape, names)) or r"(?!)" for names in (controls, answered)
        )
        self._tokens = re.compile(f"({self._names}|[\ufdd1-\ufdd4])")
        self.is_chat, self.stop = name != "plain", _STOP.get(name, ())
        question, answer = Message.from_text("user", "a"), Message.from_text("assistant", "b")
        before = self._render([question])
        self._header = self._render([question], add_generation_prompt=True).removeprefix(before)
        start, found, after = self._render([question, answer]).removeprefix(before).partition(STARTS[LossKind.TRAINED])
        if not found:
            raise ValueError("its chat template does not write what is said")
        prefix = start.removeprefix(self._header)
        self.answer_prefix = prefix if prefix.isspace() else ""
        end = re.search(self._names, after.partition(END)[2])
        self.end_token = end[0] if end and self.is_chat else ""

    def prompt(self, conversation: Conversation, *, continues: bool = False) -> list[Segment]:
        rendered = self._render(conversation, add_generation_prompt=not continues)
        return self._segments(rendered.rpartition(END)[0] + END if continues else rendered)

    def full_conversation(
        self, conversation: Conversation, train: Sequence[bool | None] | None = None
    ) -> list[Segment]:
        return self._segments(self._render(conversation, train=train))

    def without_spaces(self) -> "PublishedTemplate":
        """The same without the space that the tokenizer puts before texts, which is not the program's."""
        bare = copy(self)
        bare._space = False
        return bare

    def next_turn(self, message: Message) -> None:
        """A program may render earlier messages otherwise in a longer conversation."""

    def answer(self, message: Message) -> list[Segment]:
        """The text alone."""
        return [Segment(self.answer_prefix + message.text, LossKind.TRAINED)]

    def text(self, text: str) -> list[Segment]:
        """A text after the BOS token."""
        bos = [Segment(self._bos, LossKind.IGNORED, control=True)] if self._bos else []
        return self._add_leading_spaces([*bos, Segment(text, LossKind.PROMPT)])

    def _render(
        self,
        conversation: Conversation,
        *,
        train: Sequence[bool | None] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """What the program writes, with marks. Raises ValueError with the program's own message."""
        messages = []
        for message, is_trained in zip(conversation, train or [None] * len(conversation), strict=True):
            messages.append({"role": message.role, "content": self._marked(message, loss_of(message, is_trained))})
        return self._program(messages, add_generation_prompt=add_generation_prompt)

    def _marked(self, message: Message, loss: LossKind) -> str:
        names = self._names_in_answers if message.role == "assistant" else self._names
        text = message.text.translate(_RESERVED)
        text = re.sub(names, lambda name: f"{name[0][0]}{SPLIT}{name[0][1:]}", text)
        match = _TEXT.fullmatch(text)
        assert match, "any text is of this form"
        return f"{match[1]}{STARTS[loss]}{match[2]}{END}{match[3]}" if match[2] else text

    def _segments(self, rendered: str) -> list[Segment]:
        """The text and control tokens of what the program wrote; the token that ends an answer is trained with it."""
        result: list[Segment] = []
        loss = after = LossKind.IGNORED  # of what follows, and of the token that ends a message
        for piece in filter(None, self._tokens.split(self._with_starts(rendered))):
            if piece in _KINDS:
                loss = _KINDS[piece]
            elif piece == END:
                loss, after = LossKind.IGNORED, loss
            else:
                control = self._tokens.fullmatch(piece) is not None
                ends = control and after == LossKind.TRAINED
                result.append(Segment(piece.replace(SPLIT, ""), after if ends else loss, control))
                after = LossKind.IGNORED if control or piece.strip() else after
        return self._add_leading_spaces(result)

    def _with_starts(self, rendered: str) -> str:
        """The text with a mark after the header of each answer whose beginning was dropped."""
        *parts, rest = rendered.split(END)
        for index, part in enumerate(parts):
            if self._header and not any(mark in part for mark in _KINDS):
                before, header, answer = part.rpartition(self._header)
                parts[index] = f"{before}{header}{STARTS[LossKind.TRAINED]}{answer}" if header else part
        return END.join([*parts, rest])

    def _add_leading_spaces(self, parts: list[Segment]) -> list[Segment]:
        """Add a space to a text at the beginning, and to each text after a control token, if the template is to."""
        result: list[Segment] = []
        for segment in self._strip_whitespace(parts):
            starts_text = not segment.control and self._space and (not result or result[-1].control)
            result.append(segment._replace(text=f" {segment.text}") if starts_text else segment)
        return result

    def _strip_whitespace(self, parts: list[Segment]) -> list[Segment]:
        result: list[Segment] = []
        previous = ""  # the control token before a segment
        for segment in parts:
            if segment.control:
                while segment.text in self._stripping["lstrip"] and result and not result[-1].control:
                    last = result.pop()
                    if text := last.text.rstrip(WHITESPACE):
                        result.append(last._replace(text=text))
                        break
                previous = segment.text
            elif previous in self._stripping["rstrip"]:
                segment = segment._replace(text=segment.text.lstrip(WHITESPACE))
            if segment.text:
                result.append(segment)
                previous = segment.text if segment.control else ""
        return result


ChatTemplate = ChatmillTemplate | PublishedTemplate


def open_template(
    jinja: str,
    special: Mapping[str, int],
    *,
    name: str | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
    bos: str = "",
    leading_space: bool = False,
    flags: Mapping[str, Mapping[str, bool]] = MappingProxyType({}),
) -> ChatTemplate:
    """The template of this name, or a model's own Jinja program; chatmill's own where the tokenizer has all its tokens.

    `names` are those of control tokens in programs, such as bos_token. Raises ValueError for a program that stops.
    """
    own = CHATMILL_TEMPLATES.get(name or "")
    needed = {segment.text for segment in own.prompt([]) if segment.control} | {own.end_token} if own else set()
    if own and needed <= set(special):
        return own
    layouts = known_layouts(names.get("bos_token", bos))
    if name is not None and name not in layouts:
        raise ValueError(f"unknown template {name!r}: expected one of {', '.join(layouts)}")
    if name is not None:
        program: Callable[..., str] = layouts[name].render
    else:
        from chatmill.inference.jinja_program import JinjaProgram  # slow to import, and the others need none

        program = JinjaProgram(jinja, {"bos_token": bos, "eos_token": "", **names}).render
    return PublishedTemplate(name or "jinja", program, special, bos=bos, leading_space=leading_space, flags=flags)


# The layout of a template, for programs without Jinja: ollama's Modelfile, and the chat page.

SYSTEM, QUESTION, ANSWER, REPLY = "Be a 1.", "Is it 2?", "It is 3.", "Or 4?"


def layout_of(template: ChatTemplate) -> Layout | None:
    """The layout of a template; None where it writes anything else, such as an answer without its thoughts."""
    template = template.without_spaces() if isinstance(template, PublishedTemplate) else template
    said = (("user", QUESTION), ("assistant", ANSWER), ("user", REPLY))
    talk, system = [Message.from_text(*one) for one in said], Message.from_text("system", SYSTEM)
    try:
        begin, _, after_question = _text(template.full_conversation(talk[:1])).partition(QUESTION)
        written = _text(template.full_conversation(talk))
        between, after_answer = written.removeprefix(begin + QUESTION + after_question).split(ANSWER)
        first = _text(template.full_conversation(talk[:2])).partition(ANSWER)[2]
        before_question, _, _ = after_answer.removeprefix(first).partition(REPLY)
        whole = _text(template.full_conversation([system, *talk[:1]]))
        before_system, _, after_system = whole.removesuffix(QUESTION + after_question).partition(SYSTEM)
    except ValueError:
        return None
    user, assistant = (before_question, after_question), (between, first)
    start = begin.removesuffix(before_question)
    candidates = [
        Layout(start, (before_system, after_system.removesuffix(before_question)), user, assistant),
        Layout(start, (before_system.removeprefix(begin), after_system), user, assistant, True),
    ]
    thought = Message.from_text("assistant", f"<think>{REPLY}</think>{ANSWER}")
    chats = [[*talk, thought, talk[0]], talk[:1]]
    chats += [[system, *chat] for chat in chats]

    def fits(layout: Layout, chat: Conversation) -> bool:
        messages = [{"role": message.role, "content": message.text} for message in chat]
        return layout.render(messages, add_generation_prompt=True) == _text(template.prompt(chat))

    return next((layout for layout in candidates if all(fits(layout, chat) for chat in chats)), None)


def _text(segments: Iterable[Segment]) -> str:
    return "".join(segment.text for segment in segments)
