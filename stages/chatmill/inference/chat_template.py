"""How a chat model is asked: chatmill's two templates, and those of well-known models.

A model's own template is a Jinja program. It is never run, but recognised by the control tokens it names: Jinja's
sandbox keeps a program from the machine, but not from looping for ever, and the text it renders no longer tells the
template's control tokens from those that a user has typed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from chatmill.conversation.chatml import END, Conversation, Message, escape
from chatmill.conversation.template import Loss, Segment, Template, header_segments, message_segments, segments

Around = tuple[str, str]  # what stands before and after a message


class ChatTemplate(Protocol):
    """A way to write a conversation; segments are encoded one by one, those of one text together."""

    @property
    def name(self) -> str:
        """What it is chosen by."""

    @property
    def escapes(self) -> bool:
        """Whether text is escaped (chatmill.conversation.escape)."""

    @property
    def asks(self) -> bool:
        """Whether there is a question to answer; without, a model continues text as it stands."""

    @property
    def lead(self) -> str:
        """What a model says before the answer."""

    @property
    def end(self) -> str:
        """The control token that ends an answer; "" where none does."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer."""

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """A whole conversation, and what asks for the answer."""

    def begun(self, conversation: Conversation) -> list[Segment]:
        """A conversation whose last message, the assistant's, goes on."""

    def turn(self, message: Message) -> list[Segment]:
        """What follows the end of an answer: the user's next message, and what asks for the next answer."""

    def whole(self, conversation: Conversation) -> list[Segment]:
        """A conversation that nothing follows; trained is what the assistant says."""

    def answer(self, message: Message) -> list[Segment]:
        """What follows the prompt: the assistant's message as a model says it, without what ends it."""

    def text(self, text: str) -> list[Segment]:
        """A text that is no conversation."""


@dataclass(frozen=True)
class OwnTemplate:
    """One of chatmill.conversation.template, as the models of the pipeline are trained with."""

    name: Template = "chatml"
    escapes: ClassVar[bool] = True
    asks: ClassVar[bool] = True
    end: ClassVar[str] = END
    stop: ClassVar[tuple[str, ...]] = ()

    @property
    def lead(self) -> str:
        """What stands between the header and what is said."""
        return " " if self.name == "markers" else ""

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """A whole conversation and the header of the answer."""
        return [*segments(conversation, self.name), *header_segments("assistant", self.name)]

    def begun(self, conversation: Conversation) -> list[Segment]:
        """A conversation without the token and the newline that end its last message."""
        return segments(conversation, self.name)[:-2]

    def turn(self, message: Message) -> list[Segment]:
        """The newline after the answer, the user's message, and the header of the next answer."""
        newline = message_segments(Message("assistant", ()), self.name)[-1]
        return [newline, *message_segments(message, self.name), *header_segments("assistant", self.name)]

    def whole(self, conversation: Conversation) -> list[Segment]:
        """A conversation as it is trained."""
        return segments(conversation, self.name)

    def answer(self, message: Message) -> list[Segment]:
        """A message without its header, and without the token and the newline that end it."""
        return message_segments(message, self.name)[len(header_segments("assistant", self.name)) : -2]

    def text(self, text: str) -> list[Segment]:
        """A text as what is said is written, after the token that begins a conversation."""
        return [*segments([], self.name), Segment(escape(text), Loss.PROMPT)]


CHATML = OwnTemplate()
OWN: dict[str, OwnTemplate] = {"chatml": CHATML, "markers": OwnTemplate("markers")}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What stands around the messages of each role."""

    user: Around
    assistant: Around
    system: Around
    sign: str = ""  # what a Jinja template of this layout, and of none before it in LAYOUTS, holds
    system_in_user: bool = False  # the system prompt opens the user's first message
    asks: bool = True  # there is a question to answer
    end: str = ""  # the control token that ends an answer, at the beginning of what follows it
    stop: tuple[str, ...] = ()


LAYOUTS = {
    "chatml": Layout(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        system=("<|im_start|>system\n", "<|im_end|>\n"),
        sign="<|im_start|>",
        end="<|im_end|>",
    ),
    "llama3": Layout(
        user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
        sign="<|start_header_id|>",
        end="<|eot_id|>",
    ),
    "gemma": Layout(
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
        system=("", "\n\n"),
        sign="<start_of_turn>",
        system_in_user=True,
        end="<end_of_turn>",
    ),
    "phi3": Layout(
        user=("<|user|>\n", "<|end|>\n"),
        assistant=("<|assistant|>\n", "<|end|>\n"),
        system=("<|system|>\n", "<|end|>\n"),
        sign="<|end|>",
        end="<|end|>",
    ),
    "zephyr": Layout(
        user=("<|user|>\n", "</s>\n"),
        assistant=("<|assistant|>\n", "</s>\n"),
        system=("<|system|>\n", "</s>\n"),
        sign="<|user|>",
        end="</s>",
    ),
    "llama2": Layout(
        user=("[INST] ", " [/INST]"),
        assistant=(" ", "</s><s>"),
        system=("<<SYS>>\n", "\n<</SYS>>\n\n"),
        sign="<<SYS>>",
        system_in_user=True,
        end="</s>",
    ),
    "mistral": Layout(
        user=("[INST] ", " [/INST]"),
        assistant=(" ", "</s>"),
        system=("", "\n\n"),
        sign="[INST]",
        system_in_user=True,
        end="</s>",
    ),
    "markers": Layout(
        user=("Human: ", "\n\n"),
        assistant=("Assistant: ", "\n\n"),
        system=("System: ", "\n\n"),
        sign="Human:",
        stop=("\n\nHuman:", "\nHuman:"),
    ),
    "plain": Layout(user=("", ""), assistant=("", ""), system=("", "\n\n"), asks=False),
}
OTHERS = ("<|im_sep|>", "<|message|>", "'<|' + ")  # what templates hold that share a sign, but are another layout


class ForeignTemplate:
    """A layout in the tokens of a model made elsewhere. `controls` are the names of its control tokens."""

    escapes: ClassVar[bool] = False

    def __init__(self, name: str, controls: Iterable[str], *, bos: str = "", leading_space: bool = False) -> None:
        """`bos` is the control token that begins a text; the tokenizer may put a `leading_space` before each text.

        Raises ValueError where the tokenizer lacks the token that ends an answer.
        """
        if name not in LAYOUTS:
            raise ValueError(f"unknown template {name!r}: expected one of {', '.join(LAYOUTS)}")
        controls = set(controls)
        self.name, self._layout, self._bos, self._space = name, LAYOUTS[name], bos, leading_space
        self.end, self.stop, self.asks = self._layout.end, self._layout.stop, self._layout.asks
        if self.end and self.end not in controls:
            raise ValueError(f"template {name!r} ends answers with {self.end}, which the tokenizer does not have")
        self._asks = self._layout.assistant[0].rstrip(" ")
        self.lead = self._layout.assistant[0].removeprefix(self._asks)
        names = sorted(controls, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """A whole conversation and what asks for the answer."""
        return self._spaced([*self._messages(conversation), *self._literal(self._asks)])

    def begun(self, conversation: Conversation) -> list[Segment]:
        """A conversation whose last message, the assistant's, goes on."""
        *before, last = conversation
        said = Segment(self.lead + last.text, Loss.TRAINED)
        return self._spaced([*self._messages(before), *self._literal(self._asks), said])

    def whole(self, conversation: Conversation) -> list[Segment]:
        """A conversation that nothing follows; what the layout says is ignored."""
        return self._spaced(self._messages(conversation))

    def answer(self, message: Message) -> list[Segment]:
        """The text alone: a layout knows no calls."""
        return [Segment(self.lead + message.text, Loss.TRAINED)]

    def text(self, text: str) -> list[Segment]:
        """A text after the token that begins one."""
        return self._spaced([*self._begin(), Segment(text, Loss.PROMPT)])

    def _begin(self) -> list[Segment]:
        return [Segment(self._bos, Loss.IGNORED, control=True)] if self._bos else []

    def _messages(self, conversation: Conversation) -> list[Segment]:
        system = next((message.text for message in conversation if message.role == "system"), "")
        parts = self._begin()
        if system and not self._layout.system_in_user:
            parts += self._message("system", system)
            system = ""
        for message in conversation:
            if message.role == "user":
                parts += self._message("user", self._with(system, message.text))
                system = ""
            elif message.role == "assistant":
                parts += self._message("assistant", message.text)
        return parts

    def turn(self, message: Message) -> list[Segment]:
        """What follows the end of an answer, the user's message, and what asks for the next answer."""
        after = self._layout.assistant[1].removeprefix(self.end)
        return self._spaced([*self._literal(after), *self._message("user", message.text), *self._literal(self._asks)])

    def _with(self, system: str, text: str) -> str:
        before, after = self._layout.system
        return f"{before}{system}{after}{text}" if system else text

    def _message(self, role: str, text: str) -> list[Segment]:
        """A message; a space before it is its own, as tokens begin with theirs."""
        before, after = getattr(self._layout, role)
        header = before.rstrip(" ")
        said = Segment(before[len(header) :] + text, Loss.TRAINED if role == "assistant" else Loss.PROMPT)
        return [*self._literal(header), said, *self._literal(after)]

    def _literal(self, text: str) -> list[Segment]:
        """What the layout says, its control tokens apart."""
        found: list[Segment] = []
        position = 0
        for match in self._controls.finditer(text):
            found += [
                Segment(text[position : match.start()], Loss.IGNORED),
                Segment(match[0], Loss.IGNORED, control=True),
            ]
            position = match.end()
        return [segment for segment in [*found, Segment(text[position:], Loss.IGNORED)] if segment.text]

    def _spaced(self, parts: list[Segment]) -> list[Segment]:
        """With the space that the tokenizer puts before each text: what begins one, or follows a control token."""
        result: list[Segment] = []
        for segment in (segment for segment in parts if segment.text):
            begins = not segment.control and self._space and (not result or result[-1].control)
            result.append(segment._replace(text=f" {segment.text}") if begins else segment)
        return result


def recognised(jinja: str) -> str | None:
    """The name of the layout that a model's own template writes; None where it is none of LAYOUTS."""
    if any(sign in jinja for sign in OTHERS):
        return None
    return next((name for name, layout in LAYOUTS.items() if layout.sign and layout.sign in jinja), None)


def template_of(name: str, special: Mapping[str, int], *, bos: str = "", leading_space: bool = False) -> ChatTemplate:
    """The template of this name: chatmill's own where the tokenizer has all that it needs."""
    own = OWN.get(name)
    needed = {segment.text for segment in own.prompt([]) if segment.control} | {own.end} if own else set()
    if own and needed <= set(special):
        return own
    return ForeignTemplate(name, special, bos=bos, leading_space=leading_space)
