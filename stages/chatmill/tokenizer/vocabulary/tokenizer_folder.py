r"""The tokenizer's folder: its files, its control tokens, and the chat template in Jinja.

The Jinja template renders the same text as chatmill.conversation, including `<|bos|>`, from messages as
chatmill.datasets.formats.chats reads them. A calculator call is rendered as its expression, other calls as JSON,
each followed by its result. Message text is escaped, because these libraries read a control token's name in
a message as that token. What this format cannot express is an error.

It keeps to what the Jinja of transformers, @huggingface/jinja, ONNX Runtime GenAI and llama.cpp have in common: no
`replace`, no `in` for strings, no method on what a macro returns. The template `training` also marks answers, for
`apply_chat_template(messages, chat_template="training", return_assistant_tokens_mask=True)` of transformers.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from chatmill.conversation import BOS, CONTROL_TOKENS, IM_END, IM_START, MARKERS, PAD, TemplateName
from chatmill.pipeline.manifest import check_manifest, read_json, write_manifest
from chatmill.tokenizer.vocabulary.sentencepiece_model import (
    read_sentencepiece_model,
    sentencepiece_unsupported_reason,
    to_model_proto,
)
from chatmill.tokenizer.vocabulary.tokenizer_json import from_json, to_json
from chatmill.tokenizer.vocabulary.vocabulary import (
    NO_RANK,
    UNUSED_PREFIX,
    VOCAB_SIZE_MULTIPLE,
    Kind,
    Vocabulary,
    id_to_piece,
    unused_names,
)

# The files with which transformers and similar libraries load a tokenizer and render conversations.

CHAT_TEMPLATES = "additional_chat_templates"  # the folder in which transformers looks for named templates
SPECIAL_TOKEN_NAMES = {  # for each, the first of these tokens that the tokenizer has
    "bos_token": (BOS, "<s>", "<|begin_of_text|>"),
    "eos_token": (IM_END, "</s>", "<|eot_id|>", "<|endoftext|>"),
    "pad_token": (PAD, "<pad>", "[PAD]"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]",),
}
_TEMPLATE = Path(__file__).with_name("chat_template.jinja")  # in which the words in capitals are replaced
_PLACES: dict[TemplateName, dict[str, str]] = {
    "chatml": {
        "HEADER": rf"'{IM_START}' + message.role + '\n'",
        "AFTER_TEXT": rf"{IM_END}\n",
        "AFTER_ANSWER": r"\n",
        "PROMPT": rf"{IM_START}assistant\n",
        "SYSTEM": rf"'{IM_START}system\n'",
        "TEXT": "text",
        "ANSWER": "turn.text",
    },
    "markers": {
        "HEADER": f"{MARKERS}[message.role]",
        "AFTER_TEXT": r"\n\n",
        "AFTER_ANSWER": r"\n\n",
        "PROMPT": MARKERS["assistant"],
        "SYSTEM": f"'{MARKERS['system']} '",
        "TEXT": "(' ' if text else '') + text",
        "ANSWER": "(' ' if turn.text and not turn.resumed else '') + turn.text",
    },
}


def chat_template(template: TemplateName, *, marks_answers: bool = False) -> str:
    """The Jinja template of one of chatmill's own templates.

    `marks_answers`: transformers masks what the assistant generates; other runtimes do not know the tag for it.
    """
    tags = (f"{{%- {tag} -%}}" if marks_answers else "" for tag in ("generation", "endgeneration"))
    places = _PLACES[template] | dict(zip(("GENERATION", "ENDGENERATION"), tags, strict=True))
    return re.sub(r"\b[A-Z_]{4,}\b", lambda place: places[place[0]], _TEMPLATE.read_text(encoding="utf-8"))


def write_huggingface(tokenizer_folder: Path, out: Path, template: TemplateName, context: int | None = None) -> None:
    """Copy a tokenizer's files and add those of transformers, with chat templates if it has chat tokens.

    `context` is the length up to which a model reads the ids; None for a tokenizer without a model.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in (TOKENIZER_JSON, DESCRIPTION, SENTENCEPIECE_MODEL):
        if (tokenizer_folder / name).exists():
            shutil.copyfile(tokenizer_folder / name, out / name)
    special = json.loads((tokenizer_folder / DESCRIPTION).read_text(encoding="utf-8"))["controls"]
    found = {role: [name for name in known if name in special] for role, known in SPECIAL_TOKEN_NAMES.items()}
    names = {role: known[0] for role, known in found.items() if known}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | names
    if context is not None:
        config["model_max_length"] = context
    if IM_START in special:
        jinja = config["chat_template"] = chat_template(template)
        (out / "chat_template.jinja").write_text(jinja, encoding="utf-8")
        training = out / CHAT_TEMPLATES / "training.jinja"
        training.parent.mkdir(exist_ok=True)
        training.write_text(chat_template(template, marks_answers=True), encoding="utf-8")
    _write_json(out / "tokenizer_config.json", config)
    _write_json(out / "special_tokens_map.json", names)


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


# The tokenizer's folder: its files, and the control and unused tokens that every tokenizer gets.

TOKENIZER_JSON, DESCRIPTION, SENTENCEPIECE_MODEL = "tokenizer.json", "chatmill_tokenizer.json", "tokenizer.model"
FORMAT = 1


def check_special_tokens(names: Sequence[str]) -> None:
    """Raise ValueError unless each name has the form `<|name|>`, is not chatmill's own, and occurs once."""
    for name in names:
        if not re.fullmatch(r"<\|\w+\|>", name):
            raise ValueError(f"special token {name!r}: expected the form <|name|>")
        if name in CONTROL_TOKENS or name.startswith(UNUSED_PREFIX):
            raise ValueError(f"special token {name!r}: expected another name, since this one is chatmill's own")
    if len(set(names)) < len(names):
        raise ValueError(f"special tokens {', '.join(names)}: expected each once")


def add_special_tokens(vocabulary: Vocabulary, special_tokens: Sequence[str]) -> Vocabulary:
    """The vocabulary with any missing control tokens added, and unused ids up to a multiple of 64.

    Control tokens take the unused ids first, then new ones; no other id changes. After them, each byte without a token
    gets one, so that every text can be encoded. SentencePiece needs an id for unknown text, which never occurs here: a
    vocabulary without one keeps at least one unused id for it. Raises ValueError where a text token has the name of a
    control token.
    """
    tokens, kinds = list(vocabulary.tokens), list(vocabulary.kinds)
    spare = [i for i, kind in enumerate(kinds) if kind == Kind.UNUSED]
    controls = [name for name in (*CONTROL_TOKENS, *special_tokens) if name not in vocabulary.special]
    for i, control in zip(spare, controls, strict=False):
        tokens[i], kinds[i] = control.encode(), Kind.CONTROL
    texts = {id_to_piece(vocabulary, i) for i in vocabulary.text_ids}
    if taken := [name for name in controls if name in texts]:
        raise ValueError(f"the control token {taken[0]} is already one of its text tokens: use another tokenizer")
    added = [(name.encode(), Kind.CONTROL) for name in controls[len(spare) :]]
    added += [(bytes([byte]), Kind.NORMAL) for byte in vocabulary.missing_bytes]
    needs_unused = int(vocabulary.spelling == "marked" and Kind.UNKNOWN not in kinds and len(spare) <= len(controls))
    num_unused = needs_unused + -(len(tokens) + len(added) + needs_unused) % VOCAB_SIZE_MULTIPLE
    added += [(name, Kind.UNUSED) for name in islice(unused_names(vocabulary.tokens), num_unused)]
    return replace(
        vocabulary,
        tokens=(*tokens, *(token for token, _ in added)),
        kinds=(*kinds, *(kind for _, kind in added)),
        scores=(*vocabulary.scores, *[NO_RANK] * len(added)),
    )


def write_folder(vocabulary: Vocabulary, folder: Path) -> None:
    """Write the folder of a vocabulary, which must have its control tokens already; `read_folder` is the inverse."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER_JSON).write_text(to_json(vocabulary), encoding="utf-8")
    description = {
        "format": FORMAT,
        "type": vocabulary.type,
        "algorithm": vocabulary.algorithm,
        "pattern": vocabulary.pattern,
        "controls": vocabulary.special,
        "num_text": vocabulary.num_text,
        "vocab_size": len(vocabulary.tokens),
        "fingerprint": vocabulary.fingerprint,
    }
    _write_json(folder / DESCRIPTION, description)
    if sentencepiece_unsupported_reason(vocabulary) is None:
        (folder / SENTENCEPIECE_MODEL).write_bytes(to_model_proto(vocabulary))
    write_manifest(folder, kind="tokenizer", fingerprint=vocabulary.fingerprint)


def read_folder(folder: Path) -> Vocabulary:
    """The vocabulary of a folder. Raises ValueError if a file is missing, damaged, or from another tokenizer."""
    check_manifest(folder)
    description = read_json(folder / DESCRIPTION)
    if not isinstance(description, dict) or not {"fingerprint", "type"} <= description.keys():
        raise ValueError(f"{folder / DESCRIPTION} describes no tokenizer: make it anew")
    expected = description["fingerprint"]
    vocabulary = from_json(read_json(folder / TOKENIZER_JSON), description["type"])
    model = folder / SENTENCEPIECE_MODEL
    if vocabulary.fingerprint != expected and model.exists():  # tokenizer.json does not name user-defined pieces
        vocabulary = read_sentencepiece_model(model)
    if vocabulary.fingerprint != expected:
        raise ValueError(f"{folder / TOKENIZER_JSON} is not the tokenizer that {DESCRIPTION} describes: make it anew")
    return vocabulary


def stand_ins(content: dict[str, Any], special: Mapping[str, int], num_rows: int) -> dict[str, int]:
    """The ids by which a model of `num_rows` ids begins and ends a text, for our control tokens of the same purpose.

    `content` is its config.json, `special` has the ids of its control tokens.
    """
    end = _first(content.get("eos_token_id"), num_rows)
    begin = _first(content.get("bos_token_id"), num_rows)
    if begin is not None and begin == special.get(IM_START):  # it begins a message, as in SmolLM2
        begin = special.get("<|endoftext|>", begin)
    found = {BOS: end if begin is None else begin, IM_END: end, PAD: end}  # the end token stands between texts, too
    return {name: i for name, i in found.items() if i is not None}


def _first(ids: Any, num_rows: int) -> int | None:
    """The first of one or more ids; None where it is no row."""
    first = ids[0] if isinstance(ids, list) and ids else ids
    return first if type(first) is int and 0 <= first < num_rows else None
