"""What no GGUF file can express."""


class UnsupportedModel(ValueError):
    """A model that llama.cpp would not run as chatmill does: the reason, a text that shows it, and what to use."""

    def __init__(self, reason: str, example: str | None = None, *, remedy: str) -> None:
        self.reason, self.example = reason, example
        shown = "" if example is None else f", as in {example!r:.80}"
        super().__init__(f"GGUF cannot express it: {reason}{shown}: {remedy}")
