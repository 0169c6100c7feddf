"""`/v1/embeddings`: the mean of the last layer's hidden states of a text, with length 1 as OpenAI's have.

The model was trained to continue texts, not to compare them: similar texts are closer than others only roughly.
"""

import asyncio
import base64
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server import request_models, responses
from chatmill.app.server.api_errors import ApiError, CancellableResponse, QueueFull, send_response, to_api_error
from chatmill.app.server.models import Model, Models
from chatmill.app.server.prompts import text_prompt
from chatmill.app.server.request_body import encode_without_blocking, parse
from chatmill.pipeline.user_errors import USER_ERRORS


async def create_embeddings(models: Models, request: Request) -> Response:
    """The embeddings of one or more texts."""
    parameters, num_bytes = await parse(models, request, request_models.EmbeddingRequest)
    model = await models.get(parameters.model)
    texts = await encode_without_blocking(num_bytes, text_ids, model, parameters.inputs)

    async def respond(send: Send) -> None:
        vectors = await embed_all(models, model, texts)
        if parameters.dimensions not in (None, len(vectors[0])):
            message = f"dimensions: expected {len(vectors[0])}, the model's, got {parameters.dimensions}"
            raise ApiError(400, message, param="dimensions", code="invalid_value")
        as_base64 = parameters.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": to_base64(vector) if as_base64 else vector.tolist()}
            for index, vector in enumerate(vectors)
        ]
        count = sum(map(len, texts))
        usage = {"prompt_tokens": count, "total_tokens": count}
        values = {"object": "list", "data": data, "model": model.name, "usage": usage}
        await send_response(send, responses.json_response(values))

    return CancellableResponse(respond)


def text_ids(model: Model, texts: list[str | list[int]]) -> list[list[int]]:
    """The ids of texts. Raises ApiError if one is empty or too long, or the model's engine gives no hidden states."""
    if model.loaded.engine.name != "pytorch":
        message = f"{model.name}: its engine, {model.loaded.engine.name}, gives no hidden states: serve data/model"
        raise ApiError(501, message, param="model", code="unsupported_model")
    return [text_prompt(model, text, param="input").ids for text in texts]


async def embed_all(models: Models, model: Model, texts: list[list[int]]) -> list[np.ndarray]:
    """The embeddings (C,) of texts, computed one after another in a thread. Raises ApiError."""
    if models.num_embedding > models.options.max_waiting:
        raise to_api_error(QueueFull(f"{models.num_embedding} requests are waiting"))
    models.num_embedding += 1
    try:
        async with models.embedding:
            return [await asyncio.to_thread(embed, model.loaded.engine, ids) for ids in texts]
    except USER_ERRORS as error:
        raise to_api_error(error) from error
    finally:
        models.num_embedding -= 1


def embed(engine: Any, ids: list[int]) -> np.ndarray:
    """The mean (C,) of the hidden states of ids, divided by its length. `engine` is a PyTorchEngine."""
    import torch  # other engines do without it

    with torch.inference_mode():
        batch = torch.tensor([ids], device=engine.device)
        table = engine.model.model.embed_tokens.weight
        hidden, _ = engine.model._hidden_states(batch, table, None, None, None, last_only=False)
        mean = hidden[0].float().mean(0)
        vector: np.ndarray = (mean / mean.norm().clamp(min=1e-12)).cpu().numpy()
    return vector


def to_base64(vector: np.ndarray) -> str:
    """The float32 numbers of a vector, little-endian, as base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
