"""Tokens in the terminal: those of a chat's latest exchange, of a message, and of a text."""

import shutil
import sys
from collections.abc import Sequence

from chatmill.app.terminal.formatting import plural
from chatmill.app.terminal.token_grid import grid, print_lines
from chatmill.inference.chat_session import ChatSession
from chatmill.report.token_view import Token, text_tokens
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer, check_text


def show_tokens(session: ChatSession) -> None:
    """Print each token of the latest question and of its answer over its id; after /load those of the last message.

    Raises ValueError where there is no answer.
    """
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
