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
    """Print each token over its id: those of the latest question, and those of its answer."""
    if session.answer_stats is None:
        raise ValueError("there is no answer yet, and no tokens")
    start, columns = session.question_start, shutil.get_terminal_size().columns
    prompt_ids, answer_ids = session.prompt_ids[start:], session.answer_ids
    cached = max(0, session.answer_stats.cached_tokens - start)
    for caption, ids in (
        (
            f"{plural(len(prompt_ids), 'token')} asked{f', {cached:,} of them in the cache' if cached else ''}:",
            prompt_ids,
        ),
        (f"{plural(len(answer_ids), 'token')} answered:", answer_ids),
    ):
        tokens = _tokens(ids, session.tokenizer)
        print_lines([[("bold", caption)], *grid(tokens, columns)], sys.stderr)


def _tokens(ids: Sequence[int], tokenizer: ChatTokenizer) -> list[Token]:
    """Control tokens under their names; a model may end with an id that its tokenizer has no name for."""
    known = tokenizer.vocab_size
    return [
        Token(i, tokenizer.token_bytes[i] if i < known else b"", i >= known or not tokenizer.is_text[i]) for i in ids
    ]
