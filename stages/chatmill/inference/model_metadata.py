"""Metadata in the files beside an external model: context length, BOS token, stop tokens and chat template.

The files are Hugging Face's config.json, generation_config.json, tokenizer_config.json, chat_template.jinja and
tokenizer.json, and ONNX Runtime GenAI's genai_config.json; each may be missing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.pipeline.manifest import read_json

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
TOKENIZERS_WITH_BOS = ("LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer")  # unless their files say otherwise


class ModelMetadata(NamedTuple):
    """What the files beside a model say; None, "" or an empty set where they say nothing."""

    context: int | None
    bos_id: int | None  # the first id of each text; None where texts begin with none
    stop_ids: frozenset[int]
    chat_template: str  # a Jinja program; "" for none
    tools: tuple[str, ...]  # that the model was trained to call where they are declared
    names: dict[str, str]  # of the control tokens that templates know, such as bos_token


def read_model_metadata(folder: Path) -> ModelMetadata:
    """Read the files in a folder. Raises ValueError for one that is damaged."""
    try:
        return _read(folder)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: its JSON files do not describe a model: {error!r:.200}") from error


def _read(folder: Path) -> ModelMetadata:
    config, generation = _json(folder / "config.json"), _json(folder / "generation_config.json")
    genai, tokenizer = _json(folder / "genai_config.json").get("model") or {}, _json(folder / "tokenizer_config.json")
    config = {**(config.get("text_config") or {}), **config}
    contexts = [*(config.get(key) for key in CONTEXT_KEYS), genai.get("context_length")]
    jinja = _template(folder, tokenizer)
    added = _json(folder / "tokenizer.json")
    ids = {token["content"]: token["id"] for token in added.get("added_tokens") or () if "content" in token}
    stop = frozenset(_integers(generation.get("eos_token_id"), config.get("eos_token_id"), genai.get("eos_token_id")))
    eos = ids.get(_token_text(tokenizer.get("eos_token")))
    return ModelMetadata(
        context=next((value for value in contexts if isinstance(value, int) and value > 0), None),
        bos_id=_bos(tokenizer, added, ids, jinja, [generation, config, genai]),
        stop_ids=stop if eos is None else stop | {eos},
        chat_template=jinja,
        tools=tuple(map(str, (config.get("chatmill") or {}).get("tools") or ())),
        names={key: name for key in TOKEN_NAMES if (name := _token_text(tokenizer.get(key)))},
    )


def _bos(
    tokenizer: dict[str, Any],
    tokenizer_json: dict[str, Any],
    ids: dict[str, int],
    jinja: str,
    configs: list[dict[str, Any]],
) -> int | None:
    name = _token_text(tokenizer.get("bos_token"))
    bos = ids.get(name, next(_integers(*(config.get("bos_token_id") for config in configs)), None))
    first = _first_token(tokenizer_json.get("post_processor") or {})
    if jinja:  # a template renders BOS itself, whatever the tokenizer puts before other texts
        return (first if bos is None else bos) if "bos_token" in jinja or (name and name in jinja) else None
    if first is not None:
        return first
    family = str(tokenizer.get("tokenizer_class") or "").removesuffix("Fast") in TOKENIZERS_WITH_BOS
    return bos if tokenizer.get("add_bos_token", family) else None


def _first_token(post_processor: dict[str, Any]) -> int | None:
    for step in (post_processor, *(post_processor.get("processors") or ())):
        match step:
            case {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": name}}, *_],
                "special_tokens": known,
            }:
                return next(iter(known.get(name, {}).get("ids", ())), None)
    return None


def _template(folder: Path, tokenizer: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ValueError(f"{file}: not a chat template: {error}") from error
    template = tokenizer.get("chat_template") or ""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default") or ""
    return template if isinstance(template, str) else ""


def _token_text(token: Any) -> str:
    return str(token.get("content")) if isinstance(token, dict) else str(token or "")


def _integers(*values: Any) -> Iterator[int]:
    for value in values:
        yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int))


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = read_json(file)
    except ValueError as error:
        raise ValueError(f"{file}: not JSON that describes a model: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected a JSON object")
    return content
