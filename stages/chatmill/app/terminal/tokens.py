"""Tokens in the terminal, each over its id, and the probabilities that an answer's tokens had."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import exp
from typing import NamedTuple

from wcwidth import clip, ljust, width

from chatmill.app.terminal.text import StyledLine, aligned, plural, print_lines, wrap_text
from chatmill.conversation import OUTPUT_END, OUTPUT_START, LossKind
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.sampler import TokenLogprob, token_logprob
from chatmill.report.token_view import LOSS_NAMES, Token, text_tokens, visible
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer, check_text

# In a conversation a rule under each token shows its loss kind.

RULES = {LossKind.TRAINED: "━", LossKind.PROMPT: " ", LossKind.IGNORED: "┄", None: " "}
DARK = "#10151a"
LOSS_STYLES = {LossKind.TRAINED: f"bg:#a6dfbb {DARK}", LossKind.PROMPT: f"bg:#d9dce1 {DARK}", LossKind.IGNORED: ""}
CYCLE = tuple(f"bg:{color} {DARK}" for color in ("#b9d6f2", "#f8cfae", "#b5e3c6", "#e6c3ea", "#ece0a0"))


class _Cell(NamedTuple):
    text: str
    label: str
    rule: str
    style: str


def grid(tokens: Sequence[Token], columns: int, labels: Sequence[str] | None = None) -> Iterator[StyledLine]:
    """Three lines for each row of tokens over their ids or `labels`; it ends with a newline, or where it is full."""
    rows: list[list[_Cell]] = []
    used = full = columns + 1
    for index, token in enumerate(tokens):
        text, label = visible(token.content), labels[index] if labels else str(token.id)
        size = max(width(text), width(label))
        style = CYCLE[index % len(CYCLE)] if token.loss is None else LOSS_STYLES[token.loss]
        style = f"{style} bold" if token.is_control else style
        if used + size > columns:
            rows.append([])
            used = 0
        rows[-1].append(_Cell(ljust(text, size), ljust(label, size), RULES[token.loss] * min(size, columns), style))
        used = full if token.content.endswith(b"\n") else used + size + 1
    for row in rows:
        yield _spaced((cell.style, cell.text) for cell in row)
        yield [("", " ".join(cell.label for cell in row).rstrip())]
        yield [("", " ".join(cell.rule for cell in row).rstrip())]


def legend(tokens: Sequence[Token]) -> StyledLine:
    """The meaning of the rules and colours of a conversation, and the number of tokens of each."""
    counts = {loss: sum(token.loss == loss for token in tokens) for loss in LOSS_NAMES}
    return _spaced(
        (LOSS_STYLES[loss], f" {f'{RULES[loss]} {name}'.strip()} {counts[loss]} ") for loss, name in LOSS_NAMES.items()
    )


def _spaced(fragments: Iterable[tuple[str, str]]) -> StyledLine:
    return [part for fragment in fragments for part in (fragment, ("", " "))][:-1]


# Tokens in the terminal: those of a chat's latest exchange, of a message, and of a text.


def show_tokens(session: ChatSession) -> None:
    """Print each token of the latest exchange over its id; after /load those of the last message."""
    if session.answer_stats is None:
        ids, _ = session.tokenizer.encode_segments(session.template.answer(session.conversation[-1]))
        shown = {f"{plural(len(ids), 'token')} of the last answer:": ids}
    else:
        start = session.question_start
        cached = max(0, session.answer_stats.cached_tokens - start)
        in_cache = f", {cached:,} of them in the cache" if cached else ""
        prompt_ids, answer_ids = session.prompt_ids[start:], session.answer_ids
        shown = {
            f"{plural(len(prompt_ids), 'prompt token')}{in_cache}:": prompt_ids,
            f"{plural(len(answer_ids), 'answer token')}:": answer_ids,
        }
    for caption, ids in shown.items():
        _print_grid(caption, [token_of(i, session.tokenizer) for i in ids])


def show_text_tokens(text: str, tokenizer: ChatTokenizer) -> None:
    """Print each token of a text over its id. Raises ValueError where the text is not valid Unicode."""
    check_text(text)
    tokens = text_tokens(text, tokenizer)
    _print_grid(f"{plural(len(tokens), 'token')}:", tokens)


def token_of(i: int, tokenizer: ChatTokenizer) -> Token:
    """The token of an id; a model may end an answer with one that its tokenizer lacks."""
    known = i < tokenizer.vocab_size
    return Token(i, tokenizer.token_bytes[i] if known else b"", is_control=not known or not tokenizer.is_text[i])


def _print_grid(caption: str, tokens: Sequence[Token]) -> None:
    columns = shutil.get_terminal_size().columns
    print_lines([[("bold", caption)], *grid(tokens, columns)], sys.stderr)


# The probabilities of an answer's tokens in the terminal, and what the model might have written instead.

HESITATION = 0.5  # a token below this probability is listed with its alternatives
ALTERNATIVES = 3  # listed for such a token
LIKELIEST = 10  # listed for a token that is asked for by its number
OTHER_COLUMNS = 40  # that a table needs beside the token


def show_probabilities(session: ChatSession) -> None:
    """Print each token of the latest answer over its probability, and alternatives where the model hesitated."""
    columns, tokenizer = shutil.get_terminal_size().columns, session.tokenizer
    tokens = [token_of(i, tokenizer) for i in _answer_ids(session)]
    probabilities = list(answer_probabilities(session, 1 + ALTERNATIVES))
    outputs = " (–: the calculator's output)" if None in probabilities else ""
    caption = f"{plural(len(tokens), 'answer token')}, each over its probability in %{outputs}:"
    lines = grid(tokens, columns, [_label(one) for one in probabilities])
    hesitations = _hesitations(probabilities, tokenizer, columns)
    print_lines([*_wrapped(caption, columns, "bold"), *lines, *hesitations], sys.stderr)


def show_likeliest(session: ChatSession, number: int) -> None:
    """Print the likeliest tokens at the place of token `number`, from 1, of the latest answer."""
    ids = _answer_ids(session)
    if not 1 <= number <= len(ids):
        raise ValueError(f"/why: expected the number of a token, 1 to {len(ids)}, got {number}")
    chosen = list(answer_probabilities(session, LIKELIEST))[number - 1]
    if chosen is None:
        raise ValueError(f"/why: token {number} is the calculator's output, which the model did not choose")
    listed = dict(chosen.top_logprobs) | {chosen.token: chosen.logprob}
    width = max(1, shutil.get_terminal_size().columns - OTHER_COLUMNS)
    rows = [
        (clip(_text(i, session.tokenizer), 0, width), str(i), percent(logprob), "chosen" if i == chosen.token else "")
        for i, logprob in listed.items()
    ]
    print_lines(aligned(f"The likeliest at token {number}", ("token", "id", "probability", ""), rows), sys.stderr)


def answer_probabilities(session: ChatSession, num_logprobs: int) -> Iterator[TokenLogprob | None]:
    """Yield the log probability of each token of the latest answer, with those of the likeliest; None for outputs.

    The model reads the answer again, after what its cache holds of the prompt, so that the cache then holds the same.
    """
    engine, prompt_ids, answer_ids = session.engine, session.prompt_ids, session.answer_ids
    start, end = (session.tokenizer.special.get(name) for name in (OUTPUT_START, OUTPUT_END))
    engine.rewind(min(engine.length, len(prompt_ids) - 1))
    pending, in_output = prompt_ids[engine.length :], False
    for token in answer_ids:
        logits, pending = engine.append(pending), [token]
        in_output = in_output or token == start
        yield None if in_output else token_logprob(logits, token, num_logprobs)
        in_output = in_output and token != end


def percent(logprob: float) -> str:
    """A probability as 12.3 %; a small one has two significant digits."""
    share = 100 * exp(logprob)
    return f"{share:.1f} %" if share >= 0.1 else f"{share:.2g} %"


def _answer_ids(session: ChatSession) -> list[int]:
    """The ids of the latest answer. Raises ValueError where there is none, as after /load."""
    if not session.conversation or not session.answer_ids:
        raise ValueError("there is no answer yet: ask something, or /regenerate the last one")
    return session.answer_ids


def _label(one: TokenLogprob | None) -> str:
    if one is None:
        return "–"
    share = 100 * exp(one.logprob)
    return f"{share:.0f}" if share >= 1 else "<1"


def _hesitations(
    probabilities: Sequence[TokenLogprob | None], tokenizer: ChatTokenizer, columns: int
) -> Iterator[StyledLine]:
    limit = f"{100 * HESITATION:.0f} %"
    unlikely = [(n, one) for n, one in enumerate(probabilities, 1) if one and exp(one.logprob) < HESITATION]
    if not unlikely:
        yield from _wrapped(f"The model did not hesitate: no token is below {limit}.", columns)
        return
    caption = f"Where the model hesitated (below {limit}), and the likeliest tokens instead:"
    yield from _wrapped(caption, columns, "bold")
    for number, one in unlikely:
        others = [(i, logprob) for i, logprob in one.top_logprobs if i != one.token][:ALTERNATIVES]
        instead = ", ".join(f"{_text(i, tokenizer)} {percent(logprob)}" for i, logprob in others)
        yield from _wrapped(f"{number:<3} {_text(one.token, tokenizer)} {percent(one.logprob)}: {instead}", columns)


def _wrapped(text: str, columns: int, style: str = "") -> Iterator[StyledLine]:
    return ([(style, line)] for line in wrap_text(text, columns))


def _text(token: int, tokenizer: ChatTokenizer) -> str:
    return visible(token_of(token, tokenizer).content) or f"id {token}"
