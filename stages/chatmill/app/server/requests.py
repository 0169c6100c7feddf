"""The API's requests: models that refuse wrong types and values out of range, and the prompts that a model reads.

Unknown parameters are ignored, but those in UNSUPPORTED are refused: an answer without them would mean something else.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.requests import Request

from chatmill.app.server.models import Model
from chatmill.app.server.security import ApiError
from chatmill.conversation import Conversation
from chatmill.datasets.formats import chats
from chatmill.inference.sampler import Sampling
from chatmill.pipeline.params_file import section_errors
from chatmill.tokenizer.encoding.chat_tokenizer import check_text

# of this and similar APIs; they change what an answer says, or its format
UNSUPPORTED = re.compile(
    "logit_bias|suffix|best_of|echo|functions|function_call|audio|images|web_search_options|prompt_embeds|chat_template|"
    "guided_(json|regex|choice|grammar)|structured_outputs|grammar|json_schema|bad_words|ignore_eos|min_tokens"
)
Text = Annotated[str, Field(max_length=1 << 20)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=1 << 17, fail_fast=True)]
Stop = Annotated[str, Field(max_length=200)]
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)  # 64.0
TokenLimit = Annotated[int, Field(ge=-1), WHOLE]  # 0 and -1: as many as fit into the context
Penalty = Annotated[float, Field(ge=-2, le=2)]
RequestType = TypeVar("RequestType", bound=BaseModel)


class ModelRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    model: Annotated[str, Field(max_length=1000)] | None = None


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class ResponseFormat(BaseModel):
    type: Literal["text"]  # JSON is refused, as no grammar constrains it


class GenerationRequest(ModelRequest):
    """The parameters of generation; None stands for the server's default."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1), WHOLE] | None = None  # 0 and -1: all
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, WHOLE] | None = None
    max_tokens: TokenLimit | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    n: Annotated[int, Field(ge=1, le=1), WHOLE] | None = None

    @property
    def stops(self) -> list[str]:
        return [text for text in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if text]

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    def sampling(self, defaults: Sampling, seed: int) -> Sampling:
        """The sampling settings of the request; `seed` is used if it names none."""
        names = [name for name in Sampling.__slots__ if name != "seed"]
        values = {name: getattr(defaults if getattr(self, name) is None else self, name) for name in names}
        values["top_k"] = max(0, values["top_k"])
        return Sampling(**values, seed=seed if self.seed is None else self.seed % (1 << 64))


class ChatRequest(GenerationRequest):
    """The request of /v1/chat/completions."""

    messages: Annotated[list[Any], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    continue_final_message: bool = False
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many top logprobs each token gets; None: no logprobs at all, not even of the chosen token."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """The request of /v1/completions."""

    prompt: Text | Ids
    logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class TokenizeRequest(ModelRequest):
    """The request of /tokenize: a text, or a conversation to be answered."""

    prompt: Text | None = None
    messages: Annotated[list[Any], Field(min_length=1, max_length=10_000)] | None = None


class TokensRequest(ModelRequest):
    ids: Ids


# Read and parse the body of a request.

MAX_BODY_BYTES = 2 << 20
MAX_INLINE_BYTES = 65_536  # of a body; a longer one is parsed in a thread


async def parse(request: Request, request_type: type[RequestType]) -> RequestType:
    """The body of a request. Raises ApiError if it is wrong or too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"body: expected at most {MAX_BODY_BYTES:,} bytes", code="too_large")
    try:
        if len(body) > MAX_INLINE_BYTES:
            parameters = await asyncio.to_thread(request_type.model_validate_json, bytes(body))
        else:
            parameters = request_type.model_validate_json(bytes(body))
    except ValidationError as error:
        raise _validation_error(error, request_type, bytes(body)) from error
    for name, value in (parameters.model_extra or {}).items():
        if UNSUPPORTED.fullmatch(name) and value not in (None, False, "", [], {}):
            raise ApiError(400, f"{name}: this server does not support it", param=name, code="unsupported_parameter")
    return parameters


def _validation_error(error: ValidationError, request_type: type[BaseModel], body: bytes) -> ApiError:
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body: {first['msg']}", code="invalid_json")
    errors = section_errors("body", json.loads(body), request_type) or [f"body: {first['msg']}"]
    return ApiError(400, "; ".join(errors), param=str(first["loc"][0]) if first["loc"] else None)


# The ids of a conversation or text; invalid and too long ones are refused.


class Prompt(NamedTuple):
    ids: list[int]
    dropped_messages: int = 0  # that did not fit the context
    answer_prefix: str | None = None  # as in GenerationConfig
    lost: str = ""  # characters of the last message for which the tokenizer has no tokens


def chat_prompt(model: Model, parameters: ChatRequest, max_tokens: int) -> Prompt:
    """The prompt of a conversation. Raises ApiError if it is invalid or too long.

    A last message of the assistant is followed by another one, unless it is to be continued or ends with a tool's
    output, after which the assistant's turn goes on.
    """
    conversation = _parse_messages(parameters.messages)
    last = conversation[-1]
    ends_with_tool = bool(last.parts) and last.parts[-1].kind == "output"
    continues = parameters.continue_final_message or ends_with_tool
    if last.role == "system" or (parameters.continue_final_message and last.role != "assistant"):
        expected = "'assistant', to be continued" if continues else "'user', to be answered"
        message = f"messages: the last message has the role {last.role!r}: expected {expected}"
        raise ApiError(400, message, param="messages")
    answer_prefix = "" if continues and last.parts else None
    conversation = remaining = model.prompt_builder.declare(conversation)
    follows = last.role == "assistant" and not continues
    if parameters.truncation == "auto":
        with _refused("messages", "context_length_exceeded"):
            remaining, ids = model.prompt_builder.truncate(conversation, max_tokens, follows=follows)
    else:
        ids = model.prompt_builder.prompt_ids(conversation, follows=follows)
        several = [message.role for message in conversation].count("user") > 1
        remedy = ", or set truncation: auto, which leaves out the oldest turns" if several else ""
        check_length(ids, model.context - 1, "messages", remedy)
    lost = "" if follows else model.loaded.tokenizer.lost(last.text)
    return Prompt(ids, len(conversation) - len(remaining), answer_prefix, lost)


def text_prompt(model: Model, parameters: CompletionRequest, _: int) -> Prompt:
    """The prompt of a text or of given ids. Raises ApiError if it is invalid or too long."""
    ids = parameters.prompt
    if isinstance(ids, str):
        with _refused("prompt"):
            check_text(ids)
        ids = model.prompt_builder.encode(model.loaded.template.text(ids))
    check_ids(model, ids, model.loaded.tokenizer.vocab_size, "prompt")
    check_length(ids, model.context - 1, "prompt")
    return Prompt(ids, answer_prefix="")


def tokenize_prompt(model: Model, parameters: TokenizeRequest) -> list[int]:
    """The ids of a text without control tokens, or of a conversation with the start of an answer."""
    if parameters.messages is not None:
        return model.prompt_builder.prompt_ids(model.prompt_builder.declare(_parse_messages(parameters.messages)))
    if parameters.prompt is None:
        raise ApiError(400, "expected one of `prompt` and `messages`")
    with _refused("prompt"):
        check_text(parameters.prompt)
    return model.loaded.tokenizer.encode([parameters.prompt])[0]


def _parse_messages(given: list[object]) -> Conversation:
    with _refused("messages"):
        conversation = chats.from_messages({"messages": [*map(_with_content, given)]})
        for part in (part for message in conversation for part in message.parts):
            check_text(part.text)
        if not conversation:
            raise ValueError("messages: expected one with text, got none")
        return conversation


def _with_content(message: object) -> object:
    """A message; what an assistant or a tool left empty is an empty text. Raises ValueError if it has no role."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("messages: expected objects with role and content")
    is_empty = message.get("content") is None and not message.get("tool_calls")
    return {**message, "content": ""} if is_empty and message["role"] in ("assistant", "tool") else message


@contextmanager
def _refused(param: str, code: str | None = None) -> Iterator[None]:
    """A ValueError in the body is an ApiError about a parameter."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise ApiError(400, str(error), param=param, code=code) from error


def check_ids(model: Model, ids: list[int], count: int, param: str) -> None:
    if ids and max(ids) >= count:
        raise ApiError(400, f"{param}: expected ids 0 to {count - 1} of {model.name}, got {max(ids)}", param=param)


def check_length(ids: list[int], most: int, param: str, remedy: str = "") -> None:
    """Raise ApiError for a prompt that is empty, or does not fit the context."""
    if not 0 < len(ids) <= most:
        message = f"{param}: expected 1 to {most} tokens, got {len(ids)}: shorten the text{remedy}"
        raise ApiError(400, message, param=param, code="context_length_exceeded")
