"""The requests of ollama's endpoints."""

from typing import Annotated, Any, Literal

from pydantic import Field

from chatmill.app.server.request_models import ModelRequest, Text, Texts

OPTIONS = {  # names in OpenAI's API by those in ollama's
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "num_predict": "max_tokens",
    "stop": "stop",
}


class OllamaRequest(ModelRequest):
    """The parameters of ollama's requests for an answer; unknown `options` are ignored as other parameters are."""

    options: dict[str, Any] | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    stream: bool | None = None
    keep_alive: Any = None  # models stay loaded
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None
    context: Annotated[list[int], Field(max_length=0)] | None = None

    @property
    def ignored(self) -> list[str]:
        """The names of the parameters that were given and have no effect."""
        return [*super().ignored, *(f"options.{name}" for name in self.options or () if name not in OPTIONS)]


class OllamaChatRequest(OllamaRequest):
    """The request of /api/chat; without messages it only loads the model."""

    messages: Annotated[list[Any], Field(max_length=10_000)] | None = None
    tools: Annotated[list[Any], Field(max_length=128)] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """The request of /api/generate; without a prompt it only loads the model."""

    prompt: Text | None = None
    system: Text | None = None
    raw: bool | None = None


class OllamaEmbedRequest(ModelRequest):
    """The request of /api/embed."""

    input: Text | Texts


class OllamaShowRequest(ModelRequest):
    """The request of /api/show; `name` is an older name of `model`."""

    name: str | None = None
