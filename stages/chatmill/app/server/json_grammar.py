"""Answers in JSON: only tokens that continue JSON of a schema may be chosen (llguidance)."""

import json
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from chatmill.app.server.api_errors import ApiError
from chatmill.inference.chat_session import PromptBuilder

llguidance: Any = import_module("llguidance") if find_spec("llguidance") else None  # an extra
MAX_SCHEMA_BYTES = 65_536


class JsonGrammar:
    """The JSON of one schema, in the tokens of one model."""

    def __init__(self, prompt_builder: PromptBuilder, schema: dict[str, Any], param: str) -> None:
        """Raises ApiError, naming `param`, where the schema cannot be used, or llguidance is not installed."""
        if llguidance is None:
            message = f"{param}: JSON needs llguidance on the server: pip install 'chatmill[grammar]'"
            raise ApiError(400, message, param=param, code="unsupported_parameter")
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA_BYTES:
            raise _invalid(param, f"expected a schema of at most {MAX_SCHEMA_BYTES:,} bytes, got {len(text):,}")
        self._tokens = _token_table(prompt_builder)
        options = {"x-guidance": {"whitespace_flexible": False}}  # a small model would write spaces for ever
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema | options))
            self._matcher = llguidance.LLMatcher(self._tokens.tokenizer, grammar, log_level=0)
        except (ValueError, RecursionError) as error:
            raise _invalid(param, str(error)) from error
        if self._matcher.is_error():
            raise _invalid(param, self._matcher.get_error())

    def matcher(self) -> "Matcher":
        """A matcher at the beginning of an answer."""
        return Matcher(self._matcher.deep_copy(), self._tokens)


class Matcher:
    """How far an answer has matched a grammar."""

    def __init__(self, matcher: "llguidance.LLMatcher", tokens: "TokenTable") -> None:
        self._matcher, self._tokens = matcher, tokens

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: np.ndarray) -> np.ndarray:
        """Logits (V,) in which those of tokens that cannot follow are -inf. Raises ValueError where none can."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=len(self._tokens.usable)).astype(bool)
        allowed &= self._tokens.usable
        if self._matcher.is_error() or not allowed.any():
            raise ValueError(_first_line(self._matcher.get_error()) or "no token of the tokenizer continues the JSON")
        masked = np.full(len(logits), -np.inf, np.float32)
        masked[: len(allowed)][allowed] = logits[: len(allowed)][allowed]
        return masked

    def accept(self, token: int) -> None:
        """Add a token to the answer. Raises ValueError where it does not match."""
        if not self._matcher.consume_token(token):
            raise ValueError(_first_line(self._matcher.get_error()))


class TokenTable:
    """The tokens of a model as llguidance reads them. `usable` (V,) is True for text and the end of an answer."""

    def __init__(self, prompt_builder: PromptBuilder) -> None:
        tokenizer, end = prompt_builder.tokenizer, prompt_builder.end_id
        ends = [end] if end is not None else sorted(prompt_builder.stop_ids)
        self._encode = tokenizer.encode
        is_text = np.asarray(tokenizer.is_text, bool)
        if not ends:
            raise ValueError("the model has no token that ends an answer")
        self.tokens = [
            bytes(token) if text else b"" for token, text in zip(tokenizer.token_bytes, is_text, strict=True)
        ]
        self.usable = is_text.copy()
        if prompt_builder.template.escapes:  # a backslash after `<` is removed from the answer, and would break JSON
            self.usable &= np.array([b"<" not in token for token in self.tokens])
        self.usable[ends[:1]] = True
        self.eos_token_id, self.bos_token_id = ends[0], None
        self.special_token_ids = [i for i, text in enumerate(is_text) if not text]
        for i in self.special_token_ids:
            self.tokens[i] = b"\xff[%d]" % i
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self))

    def __call__(self, text: str) -> list[int]:
        """The ids of a text, with which llguidance foresees tokens."""
        return self._encode([text])[0]


@lru_cache(maxsize=8)
def _token_table(prompt_builder: PromptBuilder) -> TokenTable:
    try:
        return TokenTable(prompt_builder)
    except ValueError as error:
        raise ApiError(400, f"JSON: {error}", param="response_format", code="unsupported_parameter") from error


def _invalid(param: str, reason: str) -> ApiError:
    return ApiError(400, f"{param}: {_first_line(reason)}", param=param, code="invalid_value")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
