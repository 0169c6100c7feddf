"""The models of a server: those named at its start, and those of DVC's runs, which are loaded on request."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import time
from typing import Any, NamedTuple

from chatmill.app.introduction import introduce
from chatmill.app.named_models import fetch_model
from chatmill.app.server.scheduler import Scheduler
from chatmill.app.server.security import ApiError
from chatmill.inference.chat_session import PromptBuilder
from chatmill.inference.model_loading import LoadedModel, load_model
from chatmill.inference.sampler import Sampling
from chatmill.pipeline.processes import USER_ERRORS, error_line

MAX_IDLE_RUNS = 2  # runs that stay loaded while they are not in use


class ServingOptions(NamedTuple):
    load_options: dict[str, Any]  # of inference.model_loading.load_model
    parallel: int  # answers at once
    max_waiting: int  # requests in the queue
    sampling: Sampling
    max_tokens: int
    time_limit: float  # seconds for an answer


class Model(NamedTuple):
    name: str
    loaded: LoadedModel
    introduction: dict[str, Any]
    prompt_builder: PromptBuilder
    scheduler: Scheduler
    created: int

    @property
    def context(self) -> int:
        return self.prompt_builder.context


class Models:
    """Models by name, the first of which is the default."""

    def __init__(
        self, names: Sequence[str], options: ServingOptions, names_of_runs: Callable[[], list[str]] = list
    ) -> None:
        self.names, self.options, self._names_of_runs = list(dict.fromkeys(names)), options, names_of_runs
        self._models: dict[str, Model] = {}  # in the order of their last request
        self._loading: dict[str, asyncio.Task[Model]] = {}
        self._started = int(time())

    def load_all(self) -> list[Model]:
        """Load the models named at the start. Raises ValueError, OSError or MemoryError if one cannot be loaded."""
        return [self.add(name, *self._load(name)) for name in self.names]

    def add(self, name: str, loaded: LoadedModel, introduction: dict[str, Any] | None = None) -> Model:
        """Add a loaded model. Raises ValueError if its tokenizer is another model's."""
        prompt_builder = PromptBuilder(*loaded)
        scheduler = Scheduler(loaded.engine, num_slots=self.options.parallel, max_waiting=self.options.max_waiting)
        self._models[name] = Model(name, loaded, introduction or {}, prompt_builder, scheduler, int(time()))
        return self._models[name]

    async def get(self, name: str | None) -> Model:
        """The model with a name. Raises ApiError if there is none, or it cannot be loaded."""
        name = name or self.names[0]
        model = self._models.pop(name, None)
        if model and model.scheduler.alive:
            self._models[name] = model
            return model
        self.check_name(name)
        if name not in self._loading:
            self._loading[name] = asyncio.create_task(self._load_in_thread(name))
        return await asyncio.shield(self._loading[name])

    def all_names(self) -> list[str]:
        return list(dict.fromkeys([*self.names, *self._names_of_runs()]))

    def check_name(self, name: str) -> None:
        if name not in self.all_names():
            message = f"there is no model {name!r:.200}: see /v1/models for their names"
            raise ApiError(404, message, param="model", code="model_not_found")

    def describe(self, name: str) -> dict[str, Any]:
        """What is known of a model; null is what is not known before the model is loaded."""
        model = self._models.get(name)
        engine = model.loaded.engine if model else None
        sampling = {key: value for key, value in asdict(self.options.sampling).items() if key != "seed"}
        return {
            "id": name,
            "object": "model",
            "created": model.created if model else self._started,
            "owned_by": "chatmill" if name in self.names else "dvc",
            "loaded": model is not None,
            "max_model_len": engine and engine.context,
            "engine": engine and engine.name,
            "device": engine and engine.device,
            "size": engine and engine.num_bytes,
            "template": model and model.loaded.template.name,
            "tools": ["calculator"] if model and model.prompt_builder.tool else [],
            "defaults": sampling | {"max_tokens": self.options.max_tokens},
            "about": None,
            "prompts": [],
            **(model.introduction if model else {}),
        }

    async def drain(self, seconds: float) -> None:
        """Wait until all answers are complete, at most `seconds`, then stop the schedulers."""
        schedulers, deadline = [model.scheduler for model in self._models.values()], time() + seconds
        while not all(scheduler.idle for scheduler in schedulers) and time() < deadline:
            await asyncio.sleep(0.05)
        for scheduler in schedulers:
            await asyncio.to_thread(scheduler.stop)

    async def _load_in_thread(self, name: str) -> Model:
        """Load a run, after those that were used least recently and are idle made room for it."""
        idle = [model for key, model in self._models.items() if key not in self.names and model.scheduler.idle]
        evicted = idle[: max(0, len(idle) - MAX_IDLE_RUNS + 1)]
        for model in evicted:  # before anything is awaited, in which another request could take one
            del self._models[model.name]
        try:
            for model in evicted:
                await asyncio.to_thread(model.scheduler.stop)
            return self.add(name, *await asyncio.to_thread(self._load, name))
        except USER_ERRORS as error:
            raise ApiError(503, f"{name}: {error_line(error)}", param="model", code="model_not_loaded") from error
        finally:
            del self._loading[name]

    def _load(self, name: str) -> tuple[LoadedModel, dict[str, Any]]:
        with fetch_model(name) as path:
            loaded = load_model(path, **self.options.load_options)
            introduction = introduce(path, loaded, loaded.engine.num_bytes)
        for _ in range(2):  # warm-up: the first tokens are slow
            loaded.engine.append([0])
        loaded.engine.rewind(0)
        return loaded, introduction
