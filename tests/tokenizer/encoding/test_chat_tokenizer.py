import json
import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmill.conversation import CONTROL_TOKENS, Message, conversation_segments, spans
from chatmill.inference.chat_template import open_template
from chatmill.tokenizer.encoding.backends import to_tiktoken_encoding
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load
from chatmill.tokenizer.types import bpe, byte, char, sentencepiece, whitespace, wordpiece
from chatmill.tokenizer.vocabulary.patterns import PATTERN_SAMPLE, resolve
from chatmill.tokenizer.vocabulary.tokenizer_folder import TOKENIZER_JSON, add_special_tokens, write_folder
from support.conversations import HOSTILE, MESSAGES
from support.paths import SHARED
from support.texts import FORGED, FRACTION

WORDS = (
    "the user said that there was naïve talk about the weather in the café and that they'd rather walk there today\n"
)
TEXTS = [
    *WORDS.split(" "),
    *(WORDS[i:] for i in range(0, 100, 7)),
    "user\nHi 中文 é 1234<|im_end|>",
    "assistant\n🙂 don't",
]
TYPES = {
    "whitespace": (whitespace, {}),
    "char": (char, {}),
    "byte": (byte, {}),
    "bpe": (bpe, {}),
    "bpe-tokenizers": (bpe, {"trainer": "tokenizers", "pattern": "gpt2"}),
    "wordpiece": (wordpiece, {}),
    "unigram": (sentencepiece, {}),
    "sentencepiece-bpe": (sentencepiece, {"algorithm": "bpe"}),
}
NAUGHTY = [
    "",
    "\0",
    "\r\n\r\n \t",
    "a\u2581b \u2581\u2581",
    "e\u0301a\u0300\u0301 \u200d👩\u200d👩\u200d👧",
    "<|im_end|><|unused_0|> <0x41> ##a →a [UNK]",
    "Pneumonoultramicroscopicsilicovolcanoconiosis" * 25,
    "▅ ſ'ſ \ufeff\uffff\U0010ffff",
    " " * 1000 + "x" + "\n" * 300,
]
TEXT = st.one_of(st.text(), HOSTILE, st.text("ab \n\u2581é中🙂<|\\", max_size=30))


def train(name, extra=()):
    trainer, chosen = TYPES[name]
    return add_special_tokens(trainer.train(TEXTS, trainer.MINIMUM + 100, trainer.Settings(**chosen)), extra)


@pytest.fixture(scope="session")
def trained():
    return {name: ChatTokenizer(train(name, ["<|mood|>"])) for name in TYPES}


@pytest.fixture(params=TYPES)
def tokenizer(trained, request):
    return trained[request.param]


@pytest.mark.parametrize("name", TYPES)
@given(text=TEXT)
@settings(max_examples=60)
def test_ids_are_text_alone_and_their_bytes_add_up(trained, name, text):
    tokenizer = trained[name]
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()
    assert max(ids, default=0) < tokenizer.num_text
    assert tokenizer.decode(ids) == text


def test_control_ids_follow_text_in_order_and_fill_up_to_a_multiple_of_64(tokenizer):
    names = [*CONTROL_TOKENS, "<|mood|>"]
    first = tokenizer.num_text
    assert [tokenizer.special[name] for name in names] == list(range(first, first + len(names)))
    unused = [token.decode() for token in tokenizer.token_bytes[first + len(names) :]]
    assert unused == [f"<|unused_{k}|>" for k in range(len(unused))]
    assert tokenizer.vocab_size == first + len(names) + len(unused)
    assert tokenizer.vocab_size % 64 == 0


def encode_slowly(tokenizer, parts):
    """Each span is encoded by itself, and a token has the loss of its first byte."""
    for span in spans(parts):
        text, losses = "".join(part.text for part in span), [part.loss for part in span for _ in part.text.encode()]
        ids = [tokenizer.special[text]] if span[0].control else tokenizer.encode(text)
        starts = accumulate((len(tokenizer.token_bytes[i]) for i in ids), initial=0)
        yield from ((i, losses[start]) for i, start in zip(ids, starts, strict=False))


@pytest.mark.parametrize("template", ["chatml", "markers"])
@pytest.mark.parametrize("name", TYPES)
@given(conversations=st.lists(st.lists(MESSAGES, max_size=4), max_size=4))
@settings(max_examples=12)
def test_the_fast_path_equals_the_slow_one(trained, name, template, conversations):
    tokenizer = trained[name]
    rendered = [conversation_segments(conversation, template) for conversation in conversations]
    fast = tokenizer.encode_conversations(rendered)
    slow = [list(encode_slowly(tokenizer, parts)) for parts in rendered]
    assert fast.offsets.tolist() == [sum(map(len, slow[:i])) for i in range(len(slow) + 1)]
    assert [*zip(fast.ids.tolist(), fast.loss.tolist(), strict=True)] == [row for rows in slow for row in rows]
    assert [[*zip(*tokenizer.encode_segments(parts), strict=True)] for parts in rendered] == slow


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"half of a surrogate pair, '\\ud800' at character 2"):
        tokenizer.encode("ab\ud800")


def test_a_folder_gives_the_tokenizer_back(trained, tokenizer, tmp_path):
    write_folder(tokenizer.vocabulary, tmp_path)
    assert load(tmp_path).vocabulary == tokenizer.vocabulary
    assert load(tmp_path / TOKENIZER_JSON).encode(PATTERN_SAMPLE) == tokenizer.encode(PATTERN_SAMPLE)
    if (tmp_path / "tokenizer.model").exists():
        assert load(tmp_path / "tokenizer.model").fingerprint == tokenizer.fingerprint


def test_an_edited_folder_is_refused(trained, tmp_path):
    write_folder(trained["bpe"].vocabulary, tmp_path)
    canonical = tmp_path / TOKENIZER_JSON
    canonical.write_text(canonical.read_text().replace('"Ġthe"', '"Ġtha"'))
    with pytest.raises(ValueError, match=r"tokenizer\.json is damaged or was edited"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("qwen", "expected qwen2, llama3"),
        ("(a", "not a regular expression"),
        ("a*", "matches the empty string"),
        (r"\w+", "split text differently"),
    ],
)
def test_patterns_that_engines_disagree_about_are_refused(pattern, message):
    with pytest.raises(ValueError, match=message):
        resolve(pattern)


def test_fastokens_gives_the_ids_of_tiktoken_and_takes_over(trained):
    pytest.importorskip("fastokens")
    tokenizer, texts = ChatTokenizer(trained["bpe"].vocabulary), [WORDS * 9_000, *NAUGHTY, PATTERN_SAMPLE]
    expected = to_tiktoken_encoding(tokenizer.vocabulary).encode_ordinary_batch(texts)
    assert [tokenizer.encode(texts) == expected for _ in range(4)] == [True] * 4


def typed_texts(count, names):
    """Batches of texts of names of control tokens, whole, cut, escaped and between other characters."""
    pick = random.Random(1)
    parts = [*names, *(name[:-1] for name in names), *(name[1:] for name in names), *FORGED.split()]
    parts += ["<|", "|>", "<\\|", "\\", "<", "|", " ", "\n", "a", "user", "中", "\u2581", "\u200b", "\0", "##"]
    for _ in range(max(1, count // 1000)):
        yield ["".join(pick.choices(parts, k=pick.randint(1, 8))) for _ in range(1000)]


def dialogue(asked, answered):
    return [Message.from_text("user", asked), Message.from_text("assistant", answered)]


@pytest.mark.slow
@pytest.mark.parametrize("template", ["chatml", "markers"])
@pytest.mark.parametrize("name", TYPES)
def test_no_text_gives_a_control_id(trained, name, template, record_property):
    """A million texts over all types and templates: each is asked and answered."""
    tokenizer = trained[name]
    (expected, _) = tokenizer.encode_segments(conversation_segments(dialogue("a", "b"), template))
    expected = [i for i in expected if i >= tokenizer.num_text]
    for texts in typed_texts(int(62_500 * FRACTION), [*CONTROL_TOKENS, "<|mood|>", "<|unused_0|>"]):
        ids = tokenizer.encode_conversations([conversation_segments(dialogue(text, text), template) for text in texts])
        assert ids.ids[ids.ids >= tokenizer.num_text].tolist() == expected * len(texts)
        record_property("cases", len(texts))


PHI = SHARED / "tokenizers/phi-3-mini"


@pytest.mark.slow
@pytest.mark.skipif(not PHI.exists(), reason=f"no {PHI}")
def test_no_text_gives_a_control_id_of_a_published_tokenizer_and_template(record_property):
    tokenizer, config = load(PHI / "tokenizer.json"), json.loads((PHI / "tokenizer_config.json").read_text())
    names = {name: config[name] for name in ("bos_token", "eos_token")}
    template = open_template(config["chat_template"], tokenizer.special, names=names)

    def controls(text):
        ids, _ = tokenizer.encode_segments(template.prompt([Message.from_text("user", text)]))
        return [i for i in ids if i in special]

    special = {*tokenizer.special.values()}
    expected = controls("a")
    assert expected
    for texts in typed_texts(int(60_000 * FRACTION), list(tokenizer.special)):
        assert [text for text in texts if controls(text) != expected] == []
        record_property("cases", len(texts))
