"""What a request wants answered, as the ids of a model. What is no conversation, or does not fit, is refused."""

from typing import NamedTuple

from chatmill.app.server import requests
from chatmill.app.server.errors import Refusal
from chatmill.app.server.models import Model
from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats import messages
from chatmill.tokenizer.encoding.chat_tokenizer import check_text


class Prompt(NamedTuple):
    """What is to be answered, as ids."""

    ids: list[int]
    dropped: int = 0  # messages that did not fit
    lead: str | None = None  # of jobs.Wanted
    echo: str = ""  # text that the answer repeats before its own


def chat_prompt(model: Model, asked: requests.ChatRequest, max_tokens: int) -> Prompt:
    """The ids of a conversation. Raises Refusal for what is none, or does not fit."""
    conversation = conversation_of(asked.messages)
    goes_on = asked.continue_final_message
    if conversation[-1].role != ("assistant" if goes_on else "user"):
        other = "the assistant's, to be continued" if goes_on else "the user's, to be answered"
        raise Refusal(400, f"the last message is of the {conversation[-1].role}: expected {other}", param="messages")
    interpreter, lead = model.interpreter, "" if goes_on and conversation[-1].parts else None
    if asked.truncation == "auto":
        try:
            kept, ids = interpreter.fit(conversation, max_tokens)
        except ValueError as error:
            raise Refusal(400, str(error), param="messages", code="context_length_exceeded") from error
        return Prompt(ids, len(conversation) - len(kept), lead)
    ids = interpreter.prompt(conversation)
    if len(ids) >= model.context:
        raise too_long(len(ids), model.context, "messages")
    return Prompt(ids, 0, lead)


def text_prompt(model: Model, asked: requests.CompletionRequest) -> Prompt:
    """The ids of a text, or those that were given. Raises Refusal for what does not fit."""
    given = asked.prompt[0] if isinstance(asked.prompt, list) and isinstance(asked.prompt[0], str) else asked.prompt
    tokenizer = model.loaded.tokenizer
    if isinstance(given, str):
        text, ids = given, model.interpreter.encode(model.loaded.template.text(checked(given, "prompt")))
    else:
        check_ids(model, given, tokenizer.vocab_size, "prompt")
        text, ids = tokenizer.decode(given) if asked.echo else "", given
    if not 0 < len(ids) < model.context:
        raise too_long(len(ids), model.context, "prompt")
    return Prompt(ids, echo=text if asked.echo else "")


def ids_of(model: Model, asked: requests.TokenizeRequest) -> list[int]:
    """The ids of a text as it stands, or of a conversation with what asks for the answer."""
    if asked.prompt is None:
        return model.interpreter.prompt(conversation_of(asked.messages or []))
    return model.loaded.tokenizer.encode([checked(asked.prompt, "prompt")])[0]


def conversation_of(given: list[object]) -> Conversation:
    """What messages say. Raises Refusal where they are none."""
    try:
        conversation = messages.conversation({"messages": given})
    except (ValueError, RecursionError) as error:
        raise Refusal(400, str(error), param="messages", code="invalid_value") from error
    for part in (part for message in conversation for part in message.parts):
        checked(part.text, "messages")
    if not conversation:
        raise Refusal(400, "no message says anything", param="messages", code="invalid_value")
    return conversation


def checked(text: str, param: str) -> str:
    """The text. Raises Refusal where it is no Unicode text, or one that no tokenizer takes."""
    try:
        check_text(text)
    except ValueError as error:
        raise Refusal(400, str(error), param=param, code="invalid_value") from error
    return text


def check_ids(model: Model, ids: list[int], count: int, param: str) -> None:
    """Raise Refusal unless all ids are below `count`."""
    if ids and max(ids) >= count:
        raise Refusal(400, f"id {max(ids)}: {model.name} has {count} of them", param=param, code="invalid_value")


def too_long(count: int, context: int, param: str) -> Refusal:
    """A prompt does not fit."""
    what = f"{count} tokens, but the model's context is {context}: shorten it"
    return Refusal(
        400, what if count else "there is no token to begin with", param=param, code="context_length_exceeded"
    )
