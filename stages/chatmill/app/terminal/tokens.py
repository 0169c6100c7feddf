"""What the terminal shows: numbers in words, wrapped text, columns and tables, tokens and their probabilities."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from math import exp
from typing import NamedTuple, TextIO

from wcwidth import clip, ljust, rjust, wcswidth, wcwidth, width, wrap

from chatmill.conversation import OUTPUT_END, OUTPUT_START, LossKind
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.sampler import TokenLogprob, token_logprob
from chatmill.report.token_view import LOSS_NAMES, Token, text_tokens, visible
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer, check_text

StyledLine = list[tuple[str, str]]  # styles and texts


def format_size(num_bytes: int) -> str:
    """A number of bytes: 812 bytes, 7.2 MB, 15.1 GB."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    power = 1 if num_bytes < 1e6 else 2 if num_bytes < 1e9 else 3
    return f"{num_bytes / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"


def format_duration(seconds: float) -> str:
    """A duration: 12 ms, 3.4 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def plural(number: int, noun: str) -> str:
    """A number with its noun: 1 token, 2 tokens."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Text without control characters.

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_DIRECTIONS = re.compile(r"[\u202a-\u202e\u2066-\u2069]")  # of text; in columns they would mix up what is beside it


def printable(text: str) -> str:
    """Replace control characters and separators other than tabs and newlines by symbols, which a terminal ignores."""

    return _CONTROLS.sub(_mark, text)


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


# Breaks the lines of a streamed text between words.

TAB = 8  # columns from one stop to the next
ERASE = "\x1b[{}D\x1b[K"  # move to the left by so many columns, and erase what follows


class WordWrap:
    """The state of a text that begins at the left edge: its last line, as far as it is printed.

    `columns` is asked for the width of the terminal, which may change meanwhile.
    """

    def __init__(self, columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns) -> None:
        self._columns = columns
        self._column = 0
        self._word = ""  # since the last space of the line

    def feed(self, text: str) -> str:
        """What to print for the next part of a text, which has no control characters but tabs and newlines.

        The last column stays free: what a cursor beyond it does differs between terminals.
        """
        limit = max(1, self._columns() - 1)
        return "".join(self._place(character, limit) for character in text)

    def _place(self, character: str, limit: int) -> str:
        if character == "\n":
            return self._break_line("")
        width = TAB - self._column % TAB if character == "\t" else max(0, wcwidth(character))
        before = ""
        if self._column + width > limit:
            if character in " \t":
                return self._break_line("")
            length = max(0, wcswidth(self._word))
            moved = self._word if length < self._column and length + width <= limit else ""
            before = (ERASE.format(length) if moved else "") + self._break_line(moved)
        self._column += width
        self._word = "" if character in " \t" else self._word + character
        return before + character

    def _break_line(self, moved: str) -> str:
        self._word, self._column = moved, max(0, wcswidth(moved))
        return f"\n{moved}"


# Texts side by side in columns of the terminal; where it is narrow, one below the other.

MIN_COLUMN_WIDTH = 30  # of a column and its separator
SEPARATOR = " │ "


def columns(headings: Sequence[str], texts: Sequence[str], width: int) -> Iterator[StyledLine]:
    """The lines of texts under their headings, for a terminal of `width` columns."""
    column_width = width // len(texts)
    if column_width < MIN_COLUMN_WIDTH:
        for index, (heading, text) in enumerate(zip(headings, texts, strict=True)):
            yield from [[]] if index else []
            yield from ([("bold", line)] for line in wrap_text(heading, width))
            yield from ([("", line)] for line in wrap_text(text, width))
        return
    column_width -= len(SEPARATOR)
    yield from _column_rows([wrap_text(heading, column_width) for heading in headings], column_width, "bold")
    yield [("", "─┼─".join(["─" * column_width] * len(texts)))]
    yield from _column_rows([wrap_text(text, column_width) for text in texts], column_width, "")


def wrap_text(text: str, width: int) -> list[str]:
    """The lines of a text, none wider than `width`; control characters other than newlines are shown as symbols."""
    lines = _DIRECTIONS.sub(_mark, printable(text)).split("\n")
    return [piece for line in lines for piece in wrap(line, width, control_codes="ignore") or [""]]


def _column_rows(cells: Sequence[Sequence[str]], column_width: int, style: str) -> Iterator[StyledLine]:
    for row in zip_longest(*cells, fillvalue=""):
        fragments = [part for cell in row for part in (("", SEPARATOR), (style, ljust(cell, column_width)))]
        yield fragments[1:]


# Tokens and tables in the terminal: each token over its id; in a conversation a rule shows its loss kind.

RULES = {LossKind.TRAINED: "━", LossKind.PROMPT: " ", LossKind.IGNORED: "┄", None: " "}
DARK = "#10151a"
LOSS_STYLES = {LossKind.TRAINED: f"bg:#a6dfbb {DARK}", LossKind.PROMPT: f"bg:#d9dce1 {DARK}", LossKind.IGNORED: ""}
CYCLE = tuple(f"bg:{color} {DARK}" for color in ("#b9d6f2", "#f8cfae", "#b5e3c6", "#e6c3ea", "#ece0a0"))


class _Cell(NamedTuple):
    text: str
    label: str
    width: int
    style: str
    rule: str
    ends_line: bool


def print_lines(lines: Iterable[StyledLine], stream: TextIO) -> None:
    """Print lines, in colour where the stream is a terminal and NO_COLOR is not set."""
    if stream.isatty():
        from prompt_toolkit.formatted_text import FormattedText  # slow to import, and only colours need it
        from prompt_toolkit.shortcuts import print_formatted_text

        text = chain.from_iterable((*line, ("", "\n")) for line in lines)
        print_formatted_text(FormattedText(text), end="", file=stream)
        return
    try:
        for line in lines:
            print("".join(text for _, text in line).rstrip(), file=stream)
        stream.flush()
    except BrokenPipeError:  # as in `chatmill show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def grid(tokens: Sequence[Token], columns: int, labels: Sequence[str] | None = None) -> Iterator[StyledLine]:
    """Three lines for each row of tokens over their ids or `labels`; it ends with a newline, or where it is full."""
    labels = [str(token.id) for token in tokens] if labels is None else labels
    for row in _rows(map(_cell, range(len(tokens)), tokens, labels), columns):
        yield _spaced((cell.style, ljust(cell.text, cell.width)) for cell in row)
        yield [("", " ".join(ljust(cell.label, cell.width) for cell in row).rstrip())]
        yield [("", " ".join(cell.rule * min(cell.width, columns) for cell in row).rstrip())]


def legend(tokens: Sequence[Token]) -> StyledLine:
    """The meaning of the rules and colours of a conversation, and the number of tokens of each."""
    counts = {loss: sum(token.loss == loss for token in tokens) for loss in LOSS_NAMES}
    return _spaced(
        (LOSS_STYLES[loss], f" {f'{RULES[loss]} {name}'.strip()} {counts[loss]} ") for loss, name in LOSS_NAMES.items()
    )


def aligned(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[StyledLine]:
    """A table under its caption: names aligned left, all other columns right."""
    table = [head, *rows]
    widths = [max(map(width, column)) for column in zip(*table, strict=True)]
    yield [("bold", caption)]
    for row in table:
        name, *cells = zip(row, widths, strict=True)
        line = "  ".join([ljust(*name), *(rjust(cell, size) for cell, size in cells)])
        yield [("italic" if row is head else "", line.rstrip())]


def _cell(index: int, token: Token, label: str) -> _Cell:
    text = visible(token.content)
    style = CYCLE[index % len(CYCLE)] if token.loss is None else LOSS_STYLES[token.loss]
    return _Cell(
        text=text,
        label=label,
        width=max(width(text), width(label)),
        style=f"{style} bold" if token.is_control else style,
        rule=RULES[token.loss],
        ends_line=token.content.endswith(b"\n"),
    )


def _rows(cells: Iterable[_Cell], columns: int) -> Iterator[list[_Cell]]:
    row: list[_Cell] = []
    used = 0
    for cell in cells:
        if row and (row[-1].ends_line or used + cell.width > columns):
            yield row
            row, used = [], 0
        row.append(cell)
        used += cell.width + 1
    if row:
        yield row


def _spaced(fragments: Iterable[tuple[str, str]]) -> StyledLine:
    return [part for fragment in fragments for part in (fragment, ("", " "))][:-1]


# Tokens in the terminal: those of a chat's latest exchange, of a message, and of a text.


def show_tokens(session: ChatSession) -> None:
    """Print each token of the latest exchange over its id; after /load those of the last message."""
    if session.answer_stats is None:
        _show_last_message(session)
        return
    start = session.question_start
    prompt_ids, answer_ids = session.prompt_ids[start:], session.answer_ids
    cached = max(0, session.answer_stats.cached_tokens - start)
    in_cache = f", {cached:,} of them in the cache" if cached else ""
    for caption, ids in (
        (f"{plural(len(prompt_ids), 'prompt token')}{in_cache}:", prompt_ids),
        (f"{plural(len(answer_ids), 'answer token')}:", answer_ids),
    ):
        _print_grid(caption, tokens_of_ids(ids, session.tokenizer))


def show_text_tokens(text: str, tokenizer: ChatTokenizer) -> None:
    """Print each token of a text over its id. Raises ValueError where the text is not valid Unicode."""
    check_text(text)
    tokens = text_tokens(text, tokenizer)
    _print_grid(f"{plural(len(tokens), 'token')}:", tokens)


def tokens_of_ids(ids: Sequence[int], tokenizer: ChatTokenizer) -> list[Token]:
    """Tokens with control tokens by name; a model may end an answer with an id that its tokenizer lacks."""
    known = tokenizer.vocab_size
    return [
        Token(i, tokenizer.token_bytes[i] if i < known else b"", i >= known or not tokenizer.is_text[i]) for i in ids
    ]


def _show_last_message(session: ChatSession) -> None:
    if not session.conversation or session.conversation[-1].role != "assistant":
        raise ValueError("there is no answer yet")
    ids, _ = session.tokenizer.encode_segments(session.template.answer(session.conversation[-1]))
    _print_grid(f"{plural(len(ids), 'token')} of the last answer:", tokens_of_ids(ids, session.tokenizer))


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
    tokens = tokens_of_ids(_answer_ids(session), tokenizer)
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
    return visible(tokens_of_ids([token], tokenizer)[0].content) or f"id {token}"
