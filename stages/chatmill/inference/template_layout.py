"""What a chat template writes around messages, for programs without Jinja: ollama's Modelfile, and the chat page."""

from collections.abc import Iterable
from typing import NamedTuple

from chatmill.conversation import Conversation, Message, Segment
from chatmill.inference.chat_template import ChatTemplate, PublishedTemplate

Delimiters = tuple[str, str]  # the text before and after a message
SYSTEM, QUESTION, ANSWER, REPLY = "Be a 1.", "Is it 2?", "It is 3.", "Or 4?"


class Layout(NamedTuple):
    """The texts of a template that writes each message between the same two."""

    begin: str  # before the first message, where no system prompt is
    system: Delimiters  # the first with what begins a conversation, unless it is in the user's message
    user: Delimiters
    assistant: Delimiters
    system_in_user: bool  # whether the system prompt is the beginning of the user's first message

    def text(self, conversation: Conversation, *, is_prompt: bool = False) -> str:
        """A conversation, and with `is_prompt` the header of the answer."""
        first, *rest = conversation
        system = first.text if first.role == "system" else ""
        around = f"{self.system[0]}{system}{self.system[1]}" if system else ""
        result = self.begin if self.system_in_user or not system else around
        inner = around if self.system_in_user else ""
        for message in rest if first.role == "system" else conversation:
            before, after = self.user if message.role == "user" else self.assistant
            result += f"{before}{inner}{message.text}{after}"
            inner = ""
        return result + (self.assistant[0].rstrip(" ") if is_prompt else "")


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
        Layout(start, (before_system, after_system.removesuffix(before_question)), user, assistant, False),
        Layout(start, (before_system.removeprefix(begin), after_system), user, assistant, True),
    ]
    thought = Message.from_text("assistant", f"<think>{REPLY}</think>{ANSWER}")
    chats = [[*talk, thought, talk[0]], talk[:1]]
    chats += [[system, *chat] for chat in chats]

    def fits(layout: Layout) -> bool:
        return all(layout.text(chat, is_prompt=True) == _text(template.prompt(chat)) for chat in chats)

    return next(filter(fits, candidates), None)


def _text(segments: Iterable[Segment]) -> str:
    return "".join(segment.text for segment in segments)
