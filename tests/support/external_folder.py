"""A folder that transformers wrote, with a tokenizer of 256 letters."""

import tokenizers

from chatmill.conversation import IM_END
from support.external_models import make

SPECIAL = ["<s>", "</s>", IM_END]  # after the letters, in the tokenizer of the models below


def write_tokenizer(folder, letters):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_external(folder, family, **changes):
    """Write a model as transformers saves it, and its tokenizer of 256 letters and SPECIAL; return the model."""
    model = make(family, vocab_size=259, bos_token_id=256, eos_token_id=[257, 258], pad_token_id=None, **changes)
    model.save_pretrained(folder)
    write_tokenizer(folder, sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return model


def ids_of(text):
    places = {token: i for i, token in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    return [places[letter] for letter in text]


IDS = ids_of("TheĠquickĠbrownĠfoxĠjumpsĠoverĠtheĠlazyĠdog.")
