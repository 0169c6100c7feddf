"""The request of /v1/responses."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from chatmill.app.server.request_models import JsonSchema, ModelRequest, Text


class ResponsesTool(BaseModel):
    """A tool of the client in a request of /v1/responses; those of other types than `function` may have no name."""

    type: Annotated[str, Field(max_length=64)]
    name: Annotated[str, Field(max_length=64)] | None = None
    parameters: dict[str, Any] | None = None

    @property
    def function(self) -> dict[str, Any] | None:
        """The function as in a request of /v1/chat/completions."""
        return {"name": self.name, "parameters": self.parameters} if self.type == "function" else None


class ResponsesToolChoice(BaseModel):
    """The choice of one function in a request of /v1/responses."""

    type: Annotated[str, Field(max_length=64)]
    name: Annotated[str, Field(max_length=64)] | None = None

    @property
    def function(self) -> dict[str, Any] | None:
        """The function as in a request of /v1/chat/completions."""
        return {"name": self.name} if self.type == "function" else None


class TextFormat(JsonSchema):
    """The format of an answer in a request of /v1/responses."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class TextOptions(BaseModel):
    """The options of an answer's text in a request of /v1/responses."""

    format: TextFormat | None = None


class ResponsesRequest(ModelRequest):
    """The request of /v1/responses; nothing is stored, so no earlier response can be referred to."""

    input: Text | Annotated[list[Any], Field(min_length=1, max_length=10_000)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    stream: bool | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    previous_response_id: None = None
    conversation: None = None
    background: Literal[False] | None = None
    prompt: None = None
