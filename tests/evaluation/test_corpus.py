import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import Message, Part, Record, conversation_segments, escape, render
from chatmill.evaluation.corpus import Corpus
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.vocabulary import byte_level_vocabulary
from support.tiny import byte_tokenizer

CONVERSATION = [
    Message.from_text("user", "né"),
    Message("assistant", (Part("call", "1+1"), Part("output", "2"), Part("text", "ok"))),
]
MERGED = ChatTokenizer(
    add_special_tokens(byte_level_vocabulary([b"us", b"er", b"user", b"ok"], "bpe", "merge", r"[\s\S]+"), [])
)


def encoded(conversations, tokenizer=None):
    segments = [conversation_segments(conversation) for conversation in conversations]
    return Corpus.from_segments(segments, tokenizer or byte_tokenizer(), escaped=True)


def test_all_text_has_headers_and_tool_output_but_no_control_tokens():
    assert encoded([CONVERSATION]).text() == "user\nné\nassistant\n1+12ok\n".encode()


def test_assistant_text_is_what_it_says_and_calls():
    corpus = encoded([CONVERSATION])
    chosen = corpus.ids[corpus.is_scored & corpus.is_trained]
    assert corpus.tokenizer.decode(chosen) == "1+1ok"


def test_documents_are_pooled_by_bytes_not_averaged():
    corpus = encoded([[Message.from_text("user", "")], [Message.from_text("user", "x" * 18)]])  # 6 and 24 bytes of text
    nats = np.repeat([math.log(2), 0], np.diff(corpus.offsets))
    assert corpus.bits_per_byte(nats, trained_only=False) == pytest.approx(6 / 30)
    assert corpus.bits_per_byte(nats, trained_only=False, documents=np.array([True, False])) == pytest.approx(1)


def test_a_model_of_bytes_costs_the_same_whatever_the_tokens_are():
    """With nats by the bytes of each token, bits per byte do not depend on the tokenizer."""
    found = [
        corpus.bits_per_byte(0.7 * corpus.num_bytes, trained_only=False)
        for corpus in (encoded([CONVERSATION]), encoded([CONVERSATION], MERGED))
    ]
    assert found[0] == pytest.approx(found[1])
    assert len(encoded([CONVERSATION], MERGED).ids) < len(encoded([CONVERSATION]).ids)


ESCAPED = ChatTokenizer(  # with escapes inside of tokens, at their beginning, and as tokens
    add_special_tokens(byte_level_vocabulary([b"<\\", b"<\\|", b"\\|", b"\\\\", b"|<"], "bpe", "merge", r"[\s\S]+"), [])
)


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), MERGED, ESCAPED])
@given(st.text("<\\|a"), st.text("<\\|é"))
def test_bytes_are_those_of_the_text_and_not_of_its_escape(tokenizer, question, answer):
    corpus = encoded([[Message.from_text("user", question), Message.from_text("assistant", answer)]], tokenizer)
    assert corpus.text().decode() == f"user\n{question}\nassistant\n{answer}\n"
    assert corpus.num_bytes.sum() == len(corpus.text())
    trained = corpus.is_scored & corpus.is_trained
    assert corpus.num_bytes[trained].sum() == len(answer.encode())
    assert corpus.tokenizer.decode(corpus.ids[trained]) == escape(answer)


def scored(corpus, documents=None, *, trained_only):
    nats = np.ones(len(corpus.ids))
    return corpus.sums(nats, trained_only=trained_only, documents=documents)[1].tolist()


def test_a_document_is_scored_as_text_and_as_no_answer():
    records = [
        Record("talk", "1", render(CONVERSATION)),
        Record("books", "2", escape("Once <|im_end|> é")),
        Record("talk", "3", render(CONVERSATION), train=[True, False]),
    ]
    corpus = Corpus.from_records(records, byte_tokenizer(), "chatml")
    assert scored(corpus, trained_only=False) == [26, 18, 26]
    assert scored(corpus, trained_only=True) == [5, 18, 3]
    assert scored(corpus, corpus.has_roles, trained_only=True) == [5, 0, 3]
    nats = np.repeat([1.0, 100.0, 1.0], np.diff(corpus.offsets))
    chats = Corpus.from_records(records[::2], byte_tokenizer(), "chatml")
    assert corpus.bits(nats).assistant == chats.bits(np.ones(len(chats.ids))).assistant
    only = corpus.bits(nats, documents=np.array([False, True, False]))
    assert only.assistant is None and only.all == pytest.approx(100 * 19 / 18 / math.log(2))  # the escape is a token
    assert corpus.stop_nats_per_turn(nats) == 1
