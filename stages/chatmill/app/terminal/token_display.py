"""The tokens of a chat's latest exchange, in the terminal."""

import shutil
import sys
from collections.abc import Sequence

from chatmill.app.terminal.formatting import plural
from chatmill.app.terminal.token_grid import grid, print_lines
from chatmill.inference.chat_session import ChatSession
from chatmill.report.token_view import Token
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer


def show_tokens(session: ChatSession) -> None:
    """Print each token of the latest question and of its answer over its id."""
    if session.answer_stats is None:
        raise ValueError("there is no answer yet")
    start, columns = session.question_start, shutil.get_terminal_size().columns
    prompt_ids, answer_ids = session.prompt_ids[start:], session.answer_ids
    cached = max(0, session.answer_stats.cached_tokens - start)
    in_cache = f", {cached:,} of them in the cache" if cached else ""
    for caption, ids in (
        (f"{plural(len(prompt_ids), 'prompt token')}{in_cache}:", prompt_ids),
        (f"{plural(len(answer_ids), 'answer token')}:", answer_ids),
    ):
        tokens = _tokens(ids, session.tokenizer)
        print_lines([[("bold", caption)], *grid(tokens, columns)], sys.stderr)


def _tokens(ids: Sequence[int], tokenizer: ChatTokenizer) -> list[Token]:
    """Tokens with control tokens by name; a model may end an answer with an id that its tokenizer lacks."""
    known = tokenizer.vocab_size
    return [
        Token(i, tokenizer.token_bytes[i] if i < known else b"", i >= known or not tokenizer.is_text[i]) for i in ids
    ]
