"""Views of tokens: a text as tokens, and a conversation with its loss mask."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from chatmill.conversation import Conversation, LossKind, Segment, TemplateName, conversation_segments
from chatmill.report.markup import Html, join, table, tag
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

MARKS = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {" ": "·", "\n": "↵", "\t": "⇥", "\x7f": "␡"}
LOSS_NAMES = {LossKind.TRAINED: "trained", LossKind.PROMPT: "prompt", LossKind.IGNORED: "ignored"}
COLORS = 5  # in the page's palette for tokens

_PIECES = re.compile(r"[\udc80-\udcff]+|[\s\S]")  # bytes that are not UTF-8, as `surrogateescape` decodes them
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)  # printable for Python, but invisible


class Token(NamedTuple):
    id: int
    content: bytes  # its exact bytes, or the name of a control token
    is_control: bool = False
    loss: LossKind | None = None  # None in a plain text


def text_tokens(text: str, tokenizer: ChatTokenizer) -> list[Token]:
    """The tokens of a text; their concatenated contents are its bytes."""
    return [Token(i, tokenizer.token_bytes[i]) for i in tokenizer.encode(text)]


def conversation_tokens(conversation: Conversation, tokenizer: ChatTokenizer, template: TemplateName) -> list[Token]:
    """The tokens of a conversation; their concatenated contents are the bytes of the text that a model reads."""
    return segment_tokens(conversation_segments(conversation, template), tokenizer)


def segment_tokens(segments: Sequence[Segment], tokenizer: ChatTokenizer) -> list[Token]:
    ids, losses = tokenizer.encode_segments(segments)
    controls = set(tokenizer.special.values())
    return [Token(i, tokenizer.token_bytes[i], i in controls, loss) for i, loss in zip(ids, losses, strict=True)]


def visible(token: bytes) -> str:
    """A token with white space marked, invisible characters as their codes, and incomplete ones as their bytes."""
    text = token.decode(errors="surrogateescape")
    carrier = "◌" if text and unicodedata.category(text[0]).startswith("M") else ""  # for an accent without its letter
    return carrier + _PIECES.sub(_visible_piece, text)


def _visible_piece(match: re.Match[str]) -> str:
    piece = match[0]
    if "\udc80" <= piece[0] <= "\udcff":
        return f"⟨{piece.encode(errors='surrogateescape').hex(' ')}⟩"
    if piece in MARKS:
        return MARKS[piece]
    return piece if piece.isprintable() and ord(piece) not in _VARIATION_SELECTORS else f"⟨U+{ord(piece):04X}⟩"


def token_list(tokens: Sequence[Token]) -> Html:
    items = [
        _item(token, f"t{index % COLORS}", tag("small", token.id), tag("small", token.content.hex(" ")))
        for index, token in enumerate(tokens)
    ]
    return tag("ol", *items, class_="tokens", aria_label=f"{len(tokens)} tokens, each with its id and its bytes")


def loss_mask_view(tokens: Sequence[Token]) -> Html:
    """A conversation's tokens with their ids, marked by their kind of loss, and the same as a table."""
    losses = [LOSS_NAMES[token.loss] for token in tokens if token.loss is not None]
    items = [_item(token, loss, tag("small", token.id)) for token, loss in zip(tokens, losses, strict=True)]
    legend = [
        tag("span", f"{name} {sum(token.loss == loss for token in tokens)}", class_=f"token {name}")
        for loss, name in LOSS_NAMES.items()
    ]
    rows = [(visible(token.content), token.id, loss) for token, loss in zip(tokens, losses, strict=True)]
    as_table = table("Tokens of the conversation", ("token", "id", "loss"), rows)
    note = tag("p", "What the model is trained on, by an example: ", *legend, class_="note")
    return join((note, tag("ol", *items, class_="tokens"), tag("details", tag("summary", "As a table"), as_table)))


def _item(token: Token, color: str, *details: Html) -> Html:
    item = tag("li", tag("bdi", visible(token.content)), *details, class_=f"token {color}")
    return join([item, tag("li", class_="break", aria_hidden="true")]) if token.content.endswith(b"\n") else item
