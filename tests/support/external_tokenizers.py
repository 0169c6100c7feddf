"""Small tokenizers as other programs write them."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import sentencepiece
import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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


VERBATIM = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}


def llama_like(folder):
    return train_model(folder, model_type="bpe", character_coverage=0.98, **VERBATIM)


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


def gaps_like(folder):
    """A byte-level tokenizer.json without the bytes that its training text does not have, as SmolLM2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([SAMPLE_TEXT * 2], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def ranks_like(folder):
    """A file of ranks with Windows line ends, gaps between control tokens, and a description beside it."""
    tokens = bpe.train([SAMPLE_TEXT * 2], 400, bpe.Settings(pattern="cl100k")).tokens
    lines = (b"%s %d\r\n" % (base64.b64encode(token), i) for i, token in enumerate(tokens))
    (folder / "t.tiktoken").write_bytes(b"".join(lines))
    about = {"name": "own", "pattern": PATTERNS["cl100k"], "special_tokens": {"<|end|>": 402, "<|fim|>": 410}}
    (folder / "t.tiktoken.json").write_text(json.dumps(about))
    return folder / "t.tiktoken"


def bert_like(folder):
    """BERT's vocab.txt, with the magic of tokenizer.bin among its last entries."""
    letters = sorted(set(SAMPLE_TEXT.lower()) - set(" \n"))
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = "the", "cat", "##ing", "chatmill"
    entries = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words])
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
    """WordPiece over words between spaces, in which `#` is a letter, and the magic of tokenizer.bin a word."""
    entries = ["[UNK]", "a", "##b", "##", "#", "###", "b", "##a", "t", "##h", "##e", "chatmill"]
    vocab = {entry: i for i, entry in enumerate(entries)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


# One small tokenizer of each published kind: `build_…(folder)` returns its file, and text to ids in its own library.


class Built(NamedTuple):
    """A tokenizer's file, and text to ids in the library that it was made for; None if no library reads it."""

    path: Path
    encode: Callable[[str], list[int]] | None


def byte_level(pre_tokenizer=None, special=(), **settings):
    """A tokenizer.json's content: byte-level BPE with 400 tokens, trained by `tokenizers`."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(**settings.pop("model", {})))
    tokenizer.pre_tokenizer = pre_tokenizer or tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.normalizer = settings.pop("normalizer", None)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False, **settings
    )
    tokenizer.train_from_iterator([SAMPLE_TEXT] * 2, trainer)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return json.loads(tokenizer.to_str())


def added(index, content, **flags):
    """An entry of `added_tokens`; special and with no other flag unless given."""
    default = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    return {"id": index, "content": content} | default | flags


def built(folder, content):
    """A tokenizer.json; the names of its added tokens in text are these tokens."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    return Built(file, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def build_roberta(folder):
    """Without the key `use_regex`, and with a control token that takes the blanks before it."""
    content = byte_level(special=["<s>", "<pad>", "</s>", "<unk>"])
    for token in content["added_tokens"]:
        token["normalized"] = True
    content["model"]["vocab"]["<mask>"] = mask = len(content["model"]["vocab"])
    content["added_tokens"].append(added(mask, "<mask>", lstrip=True, normalized=True))
    del content["pre_tokenizer"]["use_regex"], content["model"]["type"]
    ends = {"sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    return built(folder, content | {"post_processor": {"type": "RobertaProcessing"} | ends})


def build_phi3(folder):
    """Llama 2's shape, with added tokens of all flags: a space before every text, and bytes for unknown characters."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, limit_alphabet=60, show_progress=False)
    tokenizer.train_from_iterator([SAMPLE_TEXT] * 2, trainer)
    content = json.loads(tokenizer.to_str())
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    content["model"]["vocab"] = {piece: i for i, piece in enumerate([*first, *content["model"]["vocab"]])}
    content["model"] |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace]}
    flags = {"<|user|>": {"rstrip": True}, "<|left|>": {"lstrip": True}, "<|word|>": {"single_word": True}}
    flags |= {"<|normal|>": {"normalized": True}, "tea": {"special": False}}
    flags |= {"<|both|>": {"lstrip": True, "rstrip": True}}
    size = len(content["model"]["vocab"])
    named = [added(size + i, name, **one) for i, (name, one) in enumerate(flags.items())]
    tokens = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>", special=False, rstrip=True), *named]
    return built(folder, content | {"pre_tokenizer": None, "decoder": None, "added_tokens": tokens})


def build_versioned_model(folder):
    """A SentencePiece model under the suffix `.model.v3`, with control and user-defined pieces."""
    pieces = {"control_symbols": ["[INST]", "[/INST]"], "user_defined_symbols": ["[REF]", "[/REF]"]}
    trained = train_model(folder, model_type="bpe", character_coverage=0.98, **VERBATIM, **pieces)
    return processed(trained.rename(folder / "tokenizer.model.v3"))


def build_user_defined(folder):
    """A SentencePiece model with user-defined pieces, blanks among them, and no space before a text."""
    pieces = {"user_defined_symbols": ["<sep>", "\n", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "the"]}
    chosen = VERBATIM | pieces | {"add_dummy_prefix": False}
    return processed(train_model(folder, model_type="bpe", character_coverage=0.98, **chosen))


def processed(file):
    """A SentencePiece model in its library."""
    return Built(file, sentencepiece.SentencePieceProcessor(model_file=str(file)).encode)


def build_blanks(folder):
    """Runs of blanks as added tokens that are not special, as in CodeGen and phi-2."""
    content = byte_level(special=["<|endoftext|>"])
    first = len(content["model"]["vocab"])
    runs = [" " * n for n in range(8, 1, -1)] + ["\t" * n for n in range(4, 1, -1)]
    content["added_tokens"] += [added(first + i, run, normalized=True, special=False) for i, run in enumerate(runs)]
    return built(folder, content)


def build_clip(folder):
    """Lower case, and a suffix at the end of words."""
    normal, pre = tokenizers.normalizers, tokenizers.pre_tokenizers
    pattern = r"<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    split = pre.Split(tokenizers.Regex(pattern), behavior="removed", invert=True)
    content = byte_level(
        pre.Sequence([split, pre.ByteLevel(add_prefix_space=False)]),
        special=["<|startoftext|>", "<|endoftext|>"],
        normalizer=normal.Sequence([normal.NFC(), normal.Replace(tokenizers.Regex(r"\s+"), " "), normal.Lowercase()]),
        end_of_word_suffix="</w>",
    )
    content["model"] |= {"unk_token": "<|endoftext|>", "end_of_word_suffix": "</w>"}
    content["added_tokens"][0]["normalized"] = True
    return built(folder, content)


def build_digits(folder):
    """Each digit is a piece, as in StarCoder."""
    pre = tokenizers.pre_tokenizers
    steps = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    return built(folder, byte_level(steps, special=["<|endoftext|>", "<fim_prefix>"]))


def build_words(folder):
    """WordLevel, which loses every word that it does not know."""
    model = tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return built(folder, json.loads(tokenizer.to_str()))


def build_lossy_unigram(folder):
    """Unigram after NFKC, without bytes for unknown characters."""
    return built(folder, json.loads(unigram_like(folder).read_bytes()))


def build_lossy_normalizer(folder):
    """Byte-level BPE after NFKC, which loses text."""
    return built(folder, byte_level(normalizer=tokenizers.normalizers.NFKC()))
