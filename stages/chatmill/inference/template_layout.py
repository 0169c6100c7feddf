"""What chat templates write around messages: the layouts of known models, for those without a Jinja program."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Delimiters = tuple[str, str]  # the text before and after a message


class Layout(NamedTuple):
    """The texts of a template that writes each message between the same two."""

    begin: str  # before the first message, where no system prompt is
    system: Delimiters  # the first with what begins a conversation, unless it is in the user's message
    user: Delimiters
    assistant: Delimiters
    system_in_user: bool = False  # whether the system prompt is the beginning of the user's next message

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = False) -> str:
        """The text of messages, each with a `role` and `content`; and the header of the answer, if asked for."""
        begins_with_system = bool(messages) and messages[0]["role"] == "system" and not self.system_in_user
        result, system = "" if begins_with_system else self.begin, ""
        for index, message in enumerate(messages):
            role, text = message["role"], message["content"]
            before, after = {"system": self.system, "user": self.user, "assistant": self.assistant}[role]
            if role == "system" and self.system_in_user:
                system = before + text + after
                continue
            if role == "system" and index:
                before = before.removeprefix(self.begin)
            if role == "user":
                text, system = system + text, ""
            result += before + text + after
        return result + (self.assistant[0].rstrip(" ") if add_generation_prompt else "")


def known_layouts(bos: str) -> dict[str, Layout]:
    """The layouts for models without a template beside them, by the names of `--template`; `bos` begins their texts."""

    def by_role(before: str, after: str, begin: str = bos) -> Layout:
        system, user, assistant = (before.replace("ROLE", role) for role in ("system", "user", "assistant"))
        return Layout(begin, (begin + system, after), (user, after), (assistant, after))

    gemma_end, mistral_user, mistral_answer = "<end_of_turn>\n", ("[INST] ", " [/INST]"), (" ", "</s>")
    return {
        "chatml": by_role("<|im_start|>ROLE\n", "<|im_end|>\n", begin=""),
        "llama3": by_role("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>"),
        "gemma": Layout(
            bos, ("", "\n\n"), ("<start_of_turn>user\n", gemma_end), ("<start_of_turn>model\n", gemma_end), True
        ),
        "phi3": by_role("<|ROLE|>\n", "<|end|>\n"),
        "zephyr": by_role("<|ROLE|>\n", "</s>\n"),
        "llama2": Layout("", ("<<SYS>>\n", "\n<</SYS>>\n\n"), (f"{bos}[INST] ", " [/INST]"), mistral_answer, True),
        "mistral": Layout(bos, ("", "\n\n"), mistral_user, mistral_answer, True),
        "markers": Layout(bos, (f"{bos}System: ", "\n\n"), ("Human: ", "\n\n"), ("Assistant: ", "\n\n")),
        "plain": Layout(bos, (bos, "\n\n"), ("", ""), ("", "")),
    }
