"""Pydantic models of the API's requests, which refuse unknown parameters, wrong types and values out of range."""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from chatmill.app.server.api_errors import ApiError
from chatmill.inference.sampler import Sampling

IGNORED = (  # parameters of OpenAI's API that are accepted and ignored, as they do not affect the text of an answer
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "reasoning_effort",
    "verbosity",
)
Text = Annotated[str, Field(max_length=1 << 20)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=1 << 17, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=200)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
RequestType = TypeVar("RequestType", bound="ModelRequest")


class KnownParameters(BaseModel):
    """Refuses unknown parameters at the first one; `extra="forbid"` takes a second to list 150,000 of them."""

    model_config = ConfigDict(extra="allow", strict=True)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in self.model_extra or ():
            raise PydanticCustomError("extra_forbidden", "{name}", {"name": name})
        return self


class ModelRequest(KnownParameters):
    """The parameters of every request."""

    model: Annotated[str, Field(max_length=1000)] | None = None


class StreamOptions(KnownParameters):
    """The options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(ModelRequest):
    """The parameters of generation; None stands for the server's default."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    n: Literal[1] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key not in IGNORED}

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with the usage, the number of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, defaults: Sampling, seed: int) -> Sampling:
        """The sampling settings of the request; `seed` is used if it names none."""
        names = [name for name in Sampling.__slots__ if name != "seed"]
        values = {name: getattr(defaults if getattr(self, name) is None else self, name) for name in names}
        return Sampling(**values, seed=seed if self.seed is None else self.seed % (1 << 64))


class ChatRequest(GenerationRequest):
    """The request of /v1/chat/completions."""

    messages: Annotated[list[Any], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    continue_final_message: bool = False
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None

    @field_validator("response_format")
    @classmethod
    def _is_text(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value not in (None, {"type": "text"}):
            raise ValueError('expected {"type": "text"}: no other format is supported')
        return value

    @property
    def num_logprobs(self) -> int | None:
        """How many top logprobs each token gets; None: no logprobs at all, not even of the chosen token."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """The request of /v1/completions."""

    prompt: Text | Ids | Annotated[list[Text], Field(min_length=1, max_length=1)]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None


class TokenizeRequest(ModelRequest):
    """The request of /tokenize: a text, or a conversation to be answered."""

    prompt: Text | None = None
    messages: Annotated[list[Any], Field(min_length=1, max_length=10_000)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected one of `prompt` and `messages`")
        return self


class DetokenizeRequest(ModelRequest):
    """The request of /detokenize."""

    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1 << 17, fail_fast=True)]


class TokensRequest(ModelRequest):
    """The request of /tokens."""

    ids: Ids


def parse_request(request_type: type[RequestType], body: bytes) -> RequestType:
    """Parse and validate a request's JSON. Raises ApiError with the first error."""
    try:
        return request_type.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "json_invalid":
        raise ApiError(400, f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        name = first["msg"]
        raise ApiError(400, f"unknown parameter {name!r:.100}", param=place or name, code="unknown_parameter")
    message = first["msg"].removeprefix("Value error, ")
    raise ApiError(400, f"{place}: {message}" if place else message, param=place, code="invalid_value")
