"""The probabilities of an answer's tokens in the terminal, and what the model might have written instead.

    4 answer tokens, each over its probability in %:
    It ·is ·336 <|im_end|>
    99 41  100  100

    Where the model hesitated (below 50 %), and the likeliest tokens instead:
    2  ·is 41.2 %: ·was 38.0 %, ·equals 12.4 %, ↵ 3.1 %

A probability is the model's own: sampling settings change what is chosen, not what is printed.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from math import exp

from wcwidth import clip

from chatmill.app.logprobs import TokenLogprob, token_logprob
from chatmill.app.terminal.formatting import plural
from chatmill.app.terminal.side_by_side import wrap_text
from chatmill.app.terminal.token_display import tokens_of_ids
from chatmill.app.terminal.token_grid import StyledLine, aligned, grid, print_lines
from chatmill.conversation.chatml import OUTPUT_END, OUTPUT_START
from chatmill.inference.chat_session import ChatSession
from chatmill.report.token_view import visible
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

HESITATION = 0.5  # a token below this probability is listed with its alternatives
ALTERNATIVES = 3  # listed for such a token
LIKELIEST = 10  # listed for a token that is asked for by its number
OTHER_COLUMNS = 40  # that a table needs beside the token


def show_probabilities(session: ChatSession) -> None:
    """Print each token of the latest answer over its probability, and alternatives where the model hesitated.

    Raises ValueError where there is no answer.
    """
    columns, tokenizer = shutil.get_terminal_size().columns, session.tokenizer
    tokens = tokens_of_ids(_answer_ids(session), tokenizer)
    probabilities = list(answer_probabilities(session, 1 + ALTERNATIVES))
    outputs = " (–: the calculator's output)" if None in probabilities else ""
    caption = f"{plural(len(tokens), 'answer token')}, each over its probability in %{outputs}:"
    lines = grid(tokens, columns, [_label(one) for one in probabilities])
    hesitations = _hesitations(probabilities, tokenizer, columns)
    print_lines([*_wrapped(caption, columns, "bold"), *lines, *hesitations], sys.stderr)


def show_likeliest(session: ChatSession, number: int) -> None:
    """Print the likeliest tokens at the place of token `number`, from 1, of the latest answer.

    Raises ValueError where there is no such token, or where the model did not choose it.
    """
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
    """A probability in whole percent."""
    if one is None:
        return "–"
    share = 100 * exp(one.logprob)
    return f"{share:.0f}" if share >= 1 else "<1"


def _hesitations(
    probabilities: Sequence[TokenLogprob | None], tokenizer: ChatTokenizer, columns: int
) -> Iterator[StyledLine]:
    """A line for each token that was not likely, with its number, its probability and the likeliest others."""
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
