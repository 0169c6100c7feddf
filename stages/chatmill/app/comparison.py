"""Models side by side: the answer of each to a prompt, and how likely it is under the others.

The measure is bits per byte of the answer's text: its nats under a model, after the same prompt, in that model's own
template and tokens, divided by ln 2 and by the UTF-8 bytes of the text. The number of bytes is thus the same under
every model. What a template adds to a text (escapes, a space before it) adds nats but no bytes. As in the pipeline's
metrics, control tokens and outputs of the calculator are in neither sum. A call of the calculator is scored as text;
where one of the models does not support calls, answers are scored without them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from chatmill.conversation.chatml import Message
from chatmill.conversation.template import LossKind
from chatmill.evaluation.bits_per_byte import bits_per_byte, nats_of_logits
from chatmill.inference.chat_session import AnswerStats, ChatSession
from chatmill.inference.prompt_builder import TOOL_TOKENS
from chatmill.pipeline.user_errors import USER_ERRORS, error_line

BitsMatrix = list[list[float | None]]  # bits per byte of the answer of each model (rows) under each (columns)


class ModelAnswer(NamedTuple):
    """A model's answer and its statistics, or the error that prevented it."""

    message: Message = Message("assistant", ())
    stats: AnswerStats | None = None
    error: str = ""


class Comparison(NamedTuple):
    """The answers to a prompt, and the nats of each (rows) under each model (columns), or a text that says why not.

    `num_bytes` has the number of bytes of each answer's scored text.
    """

    prompt: str
    answers: list[ModelAnswer]
    nats: list[list[float | str]]
    num_bytes: list[int]

    def bits_per_byte(self) -> BitsMatrix:
        """Bits per byte of each answer under each model; None where there is no number."""
        return [
            [None if isinstance(nats, str) else bits_per_byte(nats, size) for nats in row]
            for row, size in zip(self.nats, self.num_bytes, strict=True)
        ]


class Speed(NamedTuple):
    """How fast a model answered; None where it generated too few tokens."""

    first_token: float | None  # seconds from the question, the median over the prompts
    tokens_per_second: float | None  # after the first token


def compare_answers(prompt: str, sessions: Sequence[ChatSession]) -> Comparison:
    """Generate an answer with every model, and score every answer under every model."""
    answers = [generate_answer(session, prompt) for session in sessions]
    scored = [answer.message for answer in answers]
    if not all(map(supports_tools, sessions)):
        scored = [Message.from_text("assistant", message.text) for message in scored]
    num_bytes = [sum(len(part.text.encode()) for part in one.parts if part.kind != "output") for one in scored]
    nats = [
        [(answer.error and "no answer") or nats_or_error(session, prompt, message) for session in sessions]
        for answer, message in zip(answers, scored, strict=True)
    ]
    return Comparison(prompt, answers, nats, num_bytes)


def supports_tools(session: ChatSession) -> bool:
    """Whether the model can call the calculator."""
    return session.template.escapes and {*TOOL_TOKENS} <= session.tokenizer.special.keys()


def generate_answer(session: ChatSession, prompt: str) -> ModelAnswer:
    """The model's answer to a prompt, in a new conversation."""
    session.clear()
    session.engine.rewind(0)
    session.sampling = session.sampling  # restarts the random numbers from the seed
    try:
        deque(session.ask(prompt), maxlen=0)
    except USER_ERRORS as error:
        return ModelAnswer(error=error_line(error))
    return ModelAnswer(session.conversation[-1], session.answer_stats)


def nats_or_error(session: ChatSession, prompt: str, message: Message) -> float | str:
    """The nats of an answer under a model, or why there are none."""
    if not any(part.text for part in message.parts if part.kind != "output"):
        return "no text"
    try:
        return answer_nats(session, prompt, message)
    except USER_ERRORS as error:
        return error_line(error)


def answer_nats(session: ChatSession, prompt: str, message: Message) -> float:
    """The nats of an answer's text and calls after a prompt. Raises ValueError where they are not finite."""
    system = [Message.from_text("system", session.system)] if session.system else []
    prompt_ids, _ = session.tokenizer.encode_segments(
        session.template.prompt([*system, Message.from_text("user", prompt)])
    )
    answer_ids, losses = session.tokenizer.encode_segments(session.template.answer(message))
    logits = session.engine.sequence_logits([*prompt_ids, *answer_ids])[len(prompt_ids) - 1 :]
    with np.errstate(invalid="ignore"):
        nats = nats_of_logits(logits, np.array([prompt_ids[-1], *answer_ids]))
    total = float(nats[(np.array(losses) == LossKind.TRAINED) & session.tokenizer.is_text[answer_ids]].sum())
    if not np.isfinite(total):
        raise ValueError("the model's probability of this text is 0 or not a number")
    return total


def pooled_bits_per_byte(comparisons: Iterable[Comparison]) -> BitsMatrix:
    """Bits per byte over all prompts: nats and bytes are summed before they are divided.

    An answer that one of the models could not score is left out under all, so that the texts of a row are the same.
    """
    by_answer = zip(*(zip(one.nats, one.num_bytes, strict=True) for one in comparisons), strict=True)
    result = []
    for rows in by_answer:
        complete = [(nats, size) for nats, size in rows if not any(isinstance(value, str) for value in nats)]
        total = sum(size for _, size in complete)
        sums = np.sum([nats for nats, _ in complete], axis=0) if complete else np.zeros(len(rows[0][0]))
        result.append([bits_per_byte(float(nats), total) for nats in sums])
    return result


def speeds(comparisons: Sequence[Comparison]) -> list[Speed]:
    """How fast each model was over all prompts."""
    result = []
    for answers in zip(*(one.answers for one in comparisons), strict=True):
        timings = [answer.stats for answer in answers if answer.stats and answer.stats.tokens]
        tokens = sum(timing.tokens - 1 for timing in timings)
        seconds = sum(timing.seconds - timing.first_token for timing in timings)
        first = median(timing.first_token for timing in timings) if timings else None
        result.append(Speed(first, tokens / seconds if seconds > 0 else None))
    return result
