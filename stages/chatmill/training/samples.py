"""Sample answers to the first questions of a split, which are read as ids, so that no tokenizer is needed."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from chatmill.conversation.chatml import IM_END, IM_START
from chatmill.conversation.template import MARKERS, LossKind
from chatmill.encoded.token_files import EncodedSplit
from chatmill.model.chat_model import ChatModel
from chatmill.tokenizer.vocabulary.vocabulary import TEXT_KINDS, Vocabulary

_LONGEST = 256  # tokens of a question: the last ones before its answer
_ANSWER = 24  # tokens


def sample_answers(
    model: ChatModel, split: EncodedSplit, vocabulary: Vocabulary, number: int
) -> Iterator[tuple[str, str]]:
    """Up to `number` questions, each with the model's greedy answer; none for documents."""
    for index in np.flatnonzero(~split.is_document)[:number]:
        begin, end = split.offsets[index : index + 2]
        if question := _first_question(split.ids[begin:end], split.loss[begin:end], vocabulary):
            room = min(_LONGEST, model.config.max_position_embeddings - _ANSWER)
            question = question[-max(1, room) :]
            yield _last_message(question, vocabulary), _text(_answer(model, question, vocabulary), vocabulary)


def _first_question(ids: np.ndarray, loss: np.ndarray, vocabulary: Vocabulary) -> list[int]:
    """The ids of a conversation before the first trained message of the assistant; none where there is no such one."""
    begins = 1 + np.flatnonzero((loss[:-1] == LossKind.PROMPT) & (loss[1:] == LossKind.TRAINED))  # after a header
    questions = (ids[:begin].tolist() for begin in begins)
    return next((question for question in questions if _is_answered(question, vocabulary)), [])


def _is_answered(question: Sequence[int], vocabulary: Vocabulary) -> bool:
    """Whether the header at the end is the assistant's, not that of a message of the user which is trained, too."""
    starts = [place for place, token in enumerate(question) if token == vocabulary.special[IM_START]]
    if not starts:
        return _text(question, vocabulary).endswith(MARKERS["assistant"])
    return _text(question[starts[-1] :], vocabulary).startswith("assistant")


@torch.inference_mode()
def _answer(model: ChatModel, question: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """The ids of greedy decoding, until the model ends its turn."""
    allowed = torch.tensor([*vocabulary.text_ids, vocabulary.special[IM_END]])
    length = min(len(question) + _ANSWER, model.config.max_position_embeddings)
    cache, ids = model.new_cache(1, length), list(question)
    answer: list[int] = []
    while cache.length + len(ids) < length and (not answer or answer[-1] != vocabulary.special[IM_END]):
        logits = model(torch.tensor([ids]), cache=cache, last_only=True)[0, -1]
        ids = [int(allowed[logits[allowed].argmax()])]
        answer += ids
    return answer


def _last_message(question: Sequence[int], vocabulary: Vocabulary) -> str:
    """The text before the header of the answer, without its own header; in the template `markers`, all of it."""
    starts = [place for place, token in enumerate(question) if token == vocabulary.special[IM_START]]
    if len(starts) < 2:
        return _text(question, vocabulary)
    return _text(question[starts[-2] : starts[-1]], vocabulary).partition(" ")[2]


def _text(ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """The text of ids in one line, without control tokens."""
    text = b"".join(vocabulary.tokens[i] for i in ids if vocabulary.kinds[i] in TEXT_KINDS).decode(errors="replace")
    return " ".join(text.split())
