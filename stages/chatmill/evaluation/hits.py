"""Hits@1: how often a model prefers the true reply to replies of other conversations.

For each conversation the true last reply is ranked among NUM_CANDIDATES by the mean log-probability per token of the
reply, given the conversation; chance is 1 / NUM_CANDIDATES. It is the measure of ConvAI2 (Dinan et al. 2019,
arXiv:1902.00098), but the other replies are those whose length in bytes is nearest to that of the true one, so that
length does not give it away.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from chatmill.conversation import Conversation, LossKind, Message, Segment
from chatmill.evaluation.bits_per_byte import WindowScorer
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

NUM_CANDIDATES = 20
MAX_PROMPT_BYTES = 1000
TIE = 1e-6  # nats per token, within which two replies are equally probable

Continue = Callable[[Conversation], list[Segment]]
"""The segments of a conversation up to the last character of its last reply, whose loss alone is TRAINED there."""


class Ranking(NamedTuple):
    """The last messages before a reply, and candidates for it; the true one comes first."""

    prompt: Conversation
    candidates: list[str]


def make_rankings(conversations: Sequence[Conversation], limit: int) -> list[Ranking]:
    """The rankings of the first `limit` conversations; none if there are fewer than NUM_CANDIDATES different replies.

    The other replies are from any of the conversations. Only replies that are text alone take part. A prompt of over
    MAX_PROMPT_BYTES loses its oldest turns.
    """
    usable = [one for one in conversations if len(one) > 1 and _is_reply(one[-1])]
    replies = list(dict.fromkeys(one[-1].text for one in usable))
    if len(replies) < NUM_CANDIDATES:
        return []
    sizes = np.array([len(reply.encode()) for reply in replies])
    result = []
    for conversation in usable[:limit]:
        true = conversation[-1].text
        nearest = np.argsort(np.abs(sizes - len(true.encode())), kind="stable")
        others = islice((replies[i] for i in nearest if replies[i] != true), NUM_CANDIDATES - 1)
        result.append(Ranking(_last_turns(conversation[:-1]), [true, *others]))
    return result


def hits_at_1(
    rankings: Sequence[Ranking],
    tokenizer: ChatTokenizer,
    continue_final_message: Continue,
    context: int,
    score_windows: WindowScorer,
) -> list[float]:
    """For each ranking 1 where the true reply is the most probable, else 0; 1/k where it is one of k such replies."""
    documents = [
        continue_final_message([*ranking.prompt, Message.from_text("assistant", text)])
        for ranking in rankings
        for text in ranking.candidates
    ]
    encoded = [tokenizer.encode_segments(document) for document in documents]
    windows = [np.array(ids[-context - 1 :]) for ids, _ in encoded]  # the model does not read the last token
    nats = score_windows(windows)
    means = [-one[-_reply_tokens(losses) :].mean() for one, (_, losses) in zip(nats, encoded, strict=True)]
    return [_credit(row) for row in np.array(means).reshape(len(rankings), NUM_CANDIDATES)]


def _is_reply(message: Message) -> bool:
    return message.role == "assistant" and bool(message.text.strip()) and len(message.parts) == 1


def _last_turns(prompt: Conversation) -> Conversation:
    """The prompt from a message of the user on, or all of it if it is short enough."""
    sizes = [len(message.text.encode()) for message in prompt]
    starts = [0, *(i for i, message in enumerate(prompt) if i and message.role == "user")]
    return prompt[next((i for i in starts if sum(sizes[i:]) <= MAX_PROMPT_BYTES), starts[-1]) :]


def _reply_tokens(losses: Sequence[LossKind]) -> int:
    """The number of trained tokens at the end; 1 where a token joins the reply to its header."""
    return max(1, next((i for i, loss in enumerate(reversed(losses)) if loss != LossKind.TRAINED), len(losses)))


def _credit(means: np.ndarray) -> float:
    """The part of a hit of the first; none where a probability is not a number."""
    best = means >= means.max() - TIE
    return float(best[0]) / max(1, int(best.sum()))
