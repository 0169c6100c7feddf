"""Small tokenizers as other programs write them."""

import base64
import json

import sentencepiece
import tokenizers

from chatmill.tokenizer.types import bpe
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.tokenizer_json import to_json
from support.texts import SAMPLE_TEXT


def train_model(folder, **settings):
    """A SentencePiece model with its usual settings: a space before every text, and control tokens first."""
    chosen = {"vocab_size": 500, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2} | settings
    texts = [" ".join(SAMPLE_TEXT.split()[i : i + 9]) for i in range(0, 90, 3)] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / "t"), bos_id=1, eos_id=2, unk_id=0, **chosen
    )
    return folder / "t.model"


def llama_like(folder):
    return train_model(
        folder,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.98,
    )


def t5_like(folder):
    return train_model(folder, model_type="unigram", character_coverage=0.98)


def gpt2_like(folder):
    """encoder.json and vocab.bpe, with a control token that no merge makes."""
    trained = bpe.train([SAMPLE_TEXT * 2], 400, bpe.Settings(pattern="gpt2"))
    content = json.loads(to_json(trained))["model"]
    (folder / "encoder.json").write_text(json.dumps(content["vocab"] | {"<|endoftext|>": 400}))
    merges = ["#version: 0.2", *(" ".join(merge) for merge in content["merges"])]
    (folder / "vocab.bpe").write_text("\n".join(merges) + "\n")
    return folder


def ranks_like(folder):
    """A file of ranks with Windows line ends, gaps between control tokens, and a description beside it."""
    tokens = bpe.train([SAMPLE_TEXT * 2], 400, bpe.Settings(pattern="cl100k")).tokens
    lines = (b"%s %d\r\n" % (base64.b64encode(token), i) for i, token in enumerate(tokens))
    (folder / "t.tiktoken").write_bytes(b"".join(lines))
    about = {"name": "own", "pattern": PATTERNS["cl100k"], "special_tokens": {"<|end|>": 402, "<|fim|>": 410}}
    (folder / "t.tiktoken.json").write_text(json.dumps(about))
    return folder / "t.tiktoken"


def bert_like(folder):
    letters = sorted(set(SAMPLE_TEXT.lower()) - set(" \n"))
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), "the", "cat", "##ing", "talk"])
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


def unigram_like(folder):
    """A tokenizer.json as transformers writes it for T5."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFKC()])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<pad>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([SAMPLE_TEXT] * 5, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def nfc_like(folder):
    """A byte-level tokenizer.json that normalises, as Qwen's do."""
    content = json.loads(to_json(bpe.train([SAMPLE_TEXT * 2], 400, bpe.Settings())))
    (folder / "tokenizer.json").write_text(json.dumps(content | {"normalizer": {"type": "NFC"}}))
    return folder / "tokenizer.json"


def bpe_like(folder):
    """SentencePiece's BPE with its default settings: with normalisation, without byte fallback."""
    return train_model(folder, model_type="bpe", character_coverage=0.98)


def words_like(folder):
    """WordPiece over words between spaces, in which `#` is an ordinary letter."""
    vocab = {entry: i for i, entry in enumerate(["[UNK]", "a", "##b", "##", "#", "###", "b", "##a", "t", "##h", "##e"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
