"""Chat templates: chatmill's own two, and the layouts of well-known models.

The template beside an external model is a Jinja program. It is never run, but recognised by the control tokens that it
names: Jinja's sandbox does not stop an endless loop, and in the rendered text the template's control tokens cannot be
distinguished from those that a user has typed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

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
    message_segments,
)
from chatmill.tokenizer.vocabulary.vocabulary import WHITESPACE

Delimiters = tuple[str, str]  # the text before and after a message


class ChatTemplate(Protocol):
    """A way to render a conversation as segments, each of which is encoded by itself."""

    @property
    def name(self) -> str:
        """The name by which `--template` selects it."""

    @property
    def escapes(self) -> bool:
        """Whether text is escaped (chatmill.conversation.escape)."""

    @property
    def is_chat(self) -> bool:
        """Whether the model was trained on chats; without a template a base model continues the text."""

    @property
    def answer_prefix(self) -> str:
        """Text that the model writes before each answer and that is not shown, such as a space."""

    @property
    def end_token(self) -> str:
        """The control token that ends an answer; "" for none."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer."""

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """A complete conversation and the generation prompt."""

    def continue_final_message(self, conversation: Conversation) -> list[Segment]:
        """A conversation whose last message, the assistant's, is to be continued."""

    def next_turn(self, message: Message) -> list[Segment]:
        """What follows an answer: the rest of its end, the user's next message and the generation prompt."""

    def full_conversation(
        self, conversation: Conversation, train: Sequence[bool | None] | None = None
    ) -> list[Segment]:
        """A complete conversation, without a generation prompt; the assistant's text is marked as trained.

        `train` may say otherwise for each message, as in a Record.
        """

    def answer(self, message: Message) -> list[Segment]:
        """What follows the prompt: the assistant's message as the model writes it, without its end."""

    def text(self, text: str) -> list[Segment]:
        """A text that is not a conversation."""


@dataclass(frozen=True)
class ChatmillTemplate:
    """A template of chatmill.conversation, with which the pipeline trains its models."""

    name: TemplateName = "chatml"
    escapes: ClassVar[bool] = True
    is_chat: ClassVar[bool] = True
    end_token: ClassVar[str] = IM_END
    stop: ClassVar[tuple[str, ...]] = ()

    @property
    def answer_prefix(self) -> str:
        """The text between the header and the message text."""
        return " " if self.name == "markers" else ""

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """A complete conversation and the header of the answer."""
        return [*conversation_segments(conversation, self.name), *header_segments("assistant", self.name)]

    def continue_final_message(self, conversation: Conversation) -> list[Segment]:
        """A conversation without the token and the newline that end its last message."""
        return conversation_segments(conversation, self.name)[:-2]

    def next_turn(self, message: Message) -> list[Segment]:
        """The newline after the answer, the user's message, and the header of the next answer."""
        newline = message_segments(Message("assistant", ()), self.name)[-1]
        return [newline, *message_segments(message, self.name), *header_segments("assistant", self.name)]

    def full_conversation(
        self, conversation: Conversation, train: Sequence[bool | None] | None = None
    ) -> list[Segment]:
        return conversation_segments(conversation, self.name, train)

    def answer(self, message: Message) -> list[Segment]:
        """A message without its header, and without the token and the newline that end it."""
        return message_segments(message, self.name)[len(header_segments("assistant", self.name)) : -2]

    def text(self, text: str) -> list[Segment]:
        """A text, escaped as a message is, after the token that begins a conversation."""
        return [*conversation_segments([], self.name), Segment(escape(text), LossKind.PROMPT)]


CHATML = ChatmillTemplate()
CHATMILL_TEMPLATES: dict[str, ChatmillTemplate] = {"chatml": CHATML, "markers": ChatmillTemplate("markers")}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The text around the messages of each role."""

    user: Delimiters
    assistant: Delimiters
    system: Delimiters
    signature: str = ""  # substring of its Jinja template that is in none of an earlier layout in LAYOUTS
    system_in_user: bool = False  # the system prompt is the beginning of the user's first message
    is_chat: bool = True  # False: for base models, which continue text
    end_token: str = ""  # the control token that ends an answer, the first of the text after it
    stop: tuple[str, ...] = ()


LAYOUTS = {
    "chatml": Layout(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        system=("<|im_start|>system\n", "<|im_end|>\n"),
        signature="<|im_start|>",
        end_token="<|im_end|>",
    ),
    "llama3": Layout(
        user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
        signature="<|start_header_id|>",
        end_token="<|eot_id|>",
    ),
    "gemma": Layout(
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
        system=("", "\n\n"),
        signature="<start_of_turn>",
        system_in_user=True,
        end_token="<end_of_turn>",
    ),
    "phi3": Layout(
        user=("<|user|>\n", "<|end|>\n"),
        assistant=("<|assistant|>\n", "<|end|>\n"),
        system=("<|system|>\n", "<|end|>\n"),
        signature="<|end|>",
        end_token="<|end|>",
    ),
    "zephyr": Layout(
        user=("<|user|>\n", "</s>\n"),
        assistant=("<|assistant|>\n", "</s>\n"),
        system=("<|system|>\n", "</s>\n"),
        signature="<|user|>",
        end_token="</s>",
    ),
    "llama2": Layout(
        user=("[INST] ", " [/INST]"),
        assistant=(" ", "</s><s>"),
        system=("<<SYS>>\n", "\n<</SYS>>\n\n"),
        signature="<<SYS>>",
        system_in_user=True,
        end_token="</s>",
    ),
    "mistral": Layout(
        user=("[INST] ", " [/INST]"),
        assistant=(" ", "</s>"),
        system=("", "\n\n"),
        signature="[INST]",
        system_in_user=True,
        end_token="</s>",
    ),
    "markers": Layout(
        user=("Human: ", "\n\n"),
        assistant=("Assistant: ", "\n\n"),
        system=("System: ", "\n\n"),
        signature="Human:",
        stop=("\n\nHuman:", "\nHuman:"),
    ),
    "plain": Layout(user=("", ""), assistant=("", ""), system=("", "\n\n"), is_chat=False),
}
# of other layouts that share a signature with one above
UNSUPPORTED_SIGNATURES = ("<|im_sep|>", "<|message|>", "'<|' + ")


class ExternalTemplate:
    """A layout in the tokens of an external model. `controls` are the names of its control tokens."""

    escapes: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        controls: Iterable[str],
        *,
        bos: str = "",
        leading_space: bool = False,
        flags: Mapping[str, Mapping[str, bool]] = MappingProxyType({}),
    ) -> None:
        """`bos` is the control token that begins a text; `leading_space`: the tokenizer adds one before each text;
        `flags` say which control tokens take the whitespace before or after them (lstrip, rstrip).

        Raises ValueError where the tokenizer lacks the token that ends an answer.
        """
        if name not in LAYOUTS:
            raise ValueError(f"unknown template {name!r}: expected one of {', '.join(LAYOUTS)}")
        controls = set(controls)
        self.name, self._layout, self._bos, self._space = name, LAYOUTS[name], bos, leading_space
        self._stripping = {flag: {name for name in flags if flags[name].get(flag)} for flag in ("lstrip", "rstrip")}
        self.end_token, self.stop, self.is_chat = self._layout.end_token, self._layout.stop, self._layout.is_chat
        if self.end_token and self.end_token not in controls:
            raise ValueError(f"template {name!r} ends answers with {self.end_token}, which the tokenizer does not have")
        self._assistant_header = self._layout.assistant[0].rstrip(" ")
        self.answer_prefix = self._layout.assistant[0].removeprefix(self._assistant_header)
        names = sorted(controls, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """A complete conversation and the generation prompt."""
        return self._add_leading_spaces([*self._messages(conversation), *self._layout_segments(self._assistant_header)])

    def continue_final_message(self, conversation: Conversation) -> list[Segment]:
        """A conversation whose last message, the assistant's, is to be continued."""
        *before, last = conversation
        content = Segment(self.answer_prefix + last.text, LossKind.TRAINED)
        return self._add_leading_spaces(
            [*self._messages(before), *self._layout_segments(self._assistant_header), content]
        )

    def full_conversation(
        self, conversation: Conversation, train: Sequence[bool | None] | None = None
    ) -> list[Segment]:
        """A complete conversation; the text of the layout is ignored in the loss."""
        return self._add_leading_spaces(self._messages(conversation, train))

    def answer(self, message: Message) -> list[Segment]:
        """The text alone: a layout has no calls."""
        return [Segment(self.answer_prefix + message.text, LossKind.TRAINED)]

    def text(self, text: str) -> list[Segment]:
        """A text after the BOS token."""
        return self._add_leading_spaces([*self._bos_segments(), Segment(text, LossKind.PROMPT)])

    def _bos_segments(self) -> list[Segment]:
        return [Segment(self._bos, LossKind.IGNORED, control=True)] if self._bos else []

    def _messages(self, conversation: Conversation, train: Sequence[bool | None] | None = None) -> list[Segment]:
        system = next((message.text for message in conversation if message.role == "system"), "")
        parts = self._bos_segments()
        if system and not self._layout.system_in_user:
            parts += self._message("system", system)
            system = ""
        for message, is_trained in zip(conversation, train or [None] * len(conversation), strict=True):
            if message.role == "user":
                parts += self._message("user", self._with(system, message.text), is_trained)
                system = ""
            elif message.role == "assistant":
                parts += self._message("assistant", message.text, is_trained)
        return parts

    def next_turn(self, message: Message) -> list[Segment]:
        """The rest of an answer's end, the user's message and the generation prompt."""
        after = self._layout.assistant[1].removeprefix(self.end_token)
        segments = [
            *self._layout_segments(after),
            *self._message("user", message.text),
            *self._layout_segments(self._assistant_header),
        ]
        return self._add_leading_spaces(segments, previous=self.end_token)

    def _with(self, system: str, text: str) -> str:
        before, after = self._layout.system
        return f"{before}{system}{after}{text}" if system else text

    def _message(self, role: str, text: str, is_trained: bool | None = None) -> list[Segment]:
        """A message; a space after its header belongs to its text, as tokens include the space before a word."""
        before, after = getattr(self._layout, role)
        header = before.rstrip(" ")
        is_trained = role == "assistant" if is_trained is None else is_trained
        content = Segment(before[len(header) :] + text, LossKind.TRAINED if is_trained else LossKind.PROMPT)
        return [*self._layout_segments(header), content, *self._layout_segments(after)]

    def _layout_segments(self, text: str) -> list[Segment]:
        segments: list[Segment] = []
        position = 0
        for match in self._controls.finditer(text):
            segments += [
                Segment(text[position : match.start()], LossKind.IGNORED),
                Segment(match[0], LossKind.IGNORED, control=True),
            ]
            position = match.end()
        return [segment for segment in [*segments, Segment(text[position:], LossKind.IGNORED)] if segment.text]

    def _add_leading_spaces(self, parts: list[Segment], previous: str = "") -> list[Segment]:
        """Add the space that the tokenizer puts before a text at the beginning, and after each control token."""
        result: list[Segment] = []
        for segment in self._strip_whitespace(parts, previous):
            starts_text = not segment.control and self._space and (not result or result[-1].control)
            result.append(segment._replace(text=f" {segment.text}") if starts_text else segment)
        return result

    def _strip_whitespace(self, parts: list[Segment], previous: str) -> list[Segment]:
        """Remove the whitespace that control tokens take; `previous` is the control token before the parts."""
        result: list[Segment] = []
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


def recognise_layout(jinja: str) -> str | None:
    """The name of the layout that a Jinja template renders; None where it is none of LAYOUTS."""
    if any(signature in jinja for signature in UNSUPPORTED_SIGNATURES):
        return None
    return next((name for name, layout in LAYOUTS.items() if layout.signature and layout.signature in jinja), None)


def select_template(
    name: str,
    special: Mapping[str, int],
    *,
    bos: str = "",
    leading_space: bool = False,
    flags: Mapping[str, Mapping[str, bool]] = MappingProxyType({}),
) -> ChatTemplate:
    """The template of this name: chatmill's own where the tokenizer has all control tokens of it."""
    own = CHATMILL_TEMPLATES.get(name)
    needed = {segment.text for segment in own.prompt([]) if segment.control} | {own.end_token} if own else set()
    if own and needed <= set(special):
        return own
    return ExternalTemplate(name, special, bos=bos, leading_space=leading_space, flags=flags)
