"""Models by the names that a user gives them, which the errors of a model have, too."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chatmill.app.experiments import fetch_model
from chatmill.inference.model_loading import LoadedModel, load_model
from chatmill.pipeline.user_errors import USER_ERRORS, error_line


@contextmanager
def named_errors(name: str | Path) -> Iterator[None]:
    """Errors of the user in the body, which does not know the model's name, are ValueErrors that begin with it."""
    try:
        yield
    except USER_ERRORS as error:
        raise ValueError(f"{name}: {error_line(error)}") from error


def load_named(
    name: str | Path,
    device: str = "auto",
    threads: int | None = None,
    *,
    tokenizer: Path | None = None,
    template: str | None = None,
    trust_tokenizer: bool = False,
) -> LoadedModel:
    """The model of a path or a DVC run, as `load_model` loads it. Raises ValueError that names the file or the model.

    The files are read by their absolute paths, which no other part of a message looks like.
    """
    with fetch_model(name) as path:
        model = path.absolute()
        places = {str(model): str(Path(name))}
        if tokenizer:
            places[str(tokenizer.absolute())] = str(tokenizer)
        try:
            return load_model(
                model,
                device,
                threads,
                tokenizer=tokenizer and tokenizer.absolute(),
                template=template,
                trust_tokenizer=trust_tokenizer,
            )
        except USER_ERRORS as error:
            message = error_line(error)
            prefix = "" if any(place in message for place in places) else f"{name}: "
            folder = Path(name).parent  # of the files that describe a model, where that is one file
            places[f"{model.parent}/"] = "" if folder == Path() else f"{folder}/"
            for place, given in places.items():
                message = message.replace(place, given)
            raise ValueError(prefix + message) from error
