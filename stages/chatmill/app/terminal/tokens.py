"""Tokens in the terminal, each over its id, and the probabilities that an answer's tokens had."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from math import exp

from wcwidth import ljust, width

from chatmill.app.terminal.text import StyledLine, aligned, plural, print_lines
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


def grid(tokens: Sequence[Token], columns: int, labels: Sequence[str] | None = None) -> Iterator[StyledLine]:
    """Three lines for each row of tokens over their ids or `labels`; it ends with a newline, or where it is full."""
    rows: list[list[tuple[str, str, str, str]]] = []
    used = full = columns + 1
    for index, token in enumerate(tokens):
        text, label = visible(token.content), labels[index] if labels else str(token.id)
        size = max(width(text), width(label))
        style = CYCLE[index % len(CYCLE)] if token.loss is None else LOSS_STYLES[token.loss]
        if used + size > columns:
            rows.append([])
            used = 0
        rule = RULES[token.loss] * min(size, columns)
        rows[-1].append((f"{style} bold" if token.is_control else style, ljust(text, size), ljust(label, size), rule))
        used = full if token.content.endswith(b"\n") else used + size + 1
    for row in rows:
        yield [part for style, text, *_ in row for part in ((style, text), ("", " "))][:-1]
        yield [("", " ".join(label for *_, label, _ in row).rstrip())]
        yield [("", " ".join(rule for *_, rule in row).rstrip())]


def legend(tokens: Sequence[Token]) -> StyledLine:
    """The meaning of the rules and colours of a conversation, and the number of tokens of each."""
    line: StyledLine = []
    for loss, name in LOSS_NAMES.items():
        count = sum(token.loss == loss for token in tokens)
        line += [(LOSS_STYLES[loss], f" {f'{RULES[loss]} {name}'.strip()} {count} "), ("", " ")]
    return line


# Tokens in the terminal: those of a chat's latest exchange, and of a text.


def show_tokens(session: ChatSession) -> None:
    """Print each token of the latest exchange over its id."""
    answer_ids, prompt_ids = _answer_ids(session), session.prompt_ids[session.question_start :]
    for kind, ids in (("prompt", prompt_ids), ("answer", answer_ids)):
        _print_grid(f"{plural(len(ids), f'{kind} token')}:", [token_of(i, session.tokenizer) for i in ids])


def show_text_tokens(text: str, tokenizer: ChatTokenizer) -> None:
    """Print each token of a text over its id. Raises ValueError where the text is not valid Unicode."""
    check_text(text)
    tokens = text_tokens(text, tokenizer)
    _print_grid(f"{plural(len(tokens), 'token')}:", tokens)


def token_of(i: int, tokenizer: ChatTokenizer) -> Token:
    """The token of an id; a model may end an answer with one that its tokenizer lacks."""
    known = i < tokenizer.vocab_size
    return Token(i, tokenizer.token_bytes[i] if known else b"", is_control=not known or not tokenizer.is_text[i])


def _answer_ids(session: ChatSession) -> list[int]:
    """The ids of the latest answer. Raises ValueError where there is none, as after /load."""
    if not session.answer_ids:
        raise ValueError("there is no answer yet: ask something, or /regenerate the last one")
    return session.answer_ids


def _print_grid(caption: str, tokens: Sequence[Token], labels: Sequence[str] | None = None) -> None:
    print_lines([[("bold", caption)], *grid(tokens, shutil.get_terminal_size().columns, labels)], sys.stderr)


# The probabilities of an answer's tokens in the terminal, and what the model might have written instead.

HESITATION = 0.5  # a token below this probability is listed with its alternatives
ALTERNATIVES = 3  # listed for such a token
LIKELIEST = 10  # listed for a token that is asked for by its number


def show_probabilities(session: ChatSession) -> None:
    """Print each token of the latest answer over its probability, and alternatives where the model hesitated."""
    tokens = [token_of(i, session.tokenizer) for i in _answer_ids(session)]
    probabilities = list(answer_probabilities(session, 1 + ALTERNATIVES))
    labels = [f"{100 * exp(one.logprob):.0f}" if one else "–" for one in probabilities]
    outputs = " (–: the calculator's output)" if None in probabilities else ""
    _print_grid(f"{plural(len(tokens), 'answer token')}, each over its probability in %{outputs}:", tokens, labels)
    unlikely = [(n, one) for n, one in enumerate(probabilities, 1) if one and exp(one.logprob) < HESITATION]
    caption = f"Where the model hesitated (below {100 * HESITATION:.0f} %), and the likeliest tokens instead:"
    lines: list[StyledLine] = [[("bold", caption)]] if unlikely else []
    for number, one in unlikely:
        likely = [pair for pair in one.top_logprobs if pair[0] != one.token][:ALTERNATIVES]
        token, *others = (f"{_text(i, session.tokenizer)} {percent(p)}" for i, p in ((one.token, one.logprob), *likely))
        lines.append([("", f"{number:<3} {token}: {', '.join(others)}")])
    print_lines(lines, sys.stderr)


def show_likeliest(session: ChatSession, number: str) -> None:
    """Print the likeliest tokens at the place of token `number`, from 1, of the latest answer."""
    last = len(_answer_ids(session))
    if not number.isdecimal() or not 1 <= int(number) <= last:
        raise ValueError(f"/why: expected the number of a token, 1 to {last}, got {number!r}")
    chosen = list(answer_probabilities(session, LIKELIEST))[int(number) - 1]
    if chosen is None:
        raise ValueError(f"/why: token {number} is the calculator's output, which the model did not choose")
    rows = [
        (_text(i, session.tokenizer), str(i), percent(logprob), "chosen" if i == chosen.token else "")
        for i, logprob in (dict(chosen.top_logprobs) | {chosen.token: chosen.logprob}).items()
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


def _text(token: int, tokenizer: ChatTokenizer) -> str:
    return visible(token_of(token, tokenizer).content) or f"id {token}"
