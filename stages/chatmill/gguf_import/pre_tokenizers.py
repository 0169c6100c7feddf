"""The split patterns that llama.cpp has, by the names in `tokenizer.ggml.pre`."""

from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.preprocessing import from_tokenizers_json

DIGITS = from_tokenizers_json(
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}}
)
SHORT_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = "llama-bpe"  # the one that takes a piece that is a token as it is
PRE_TOKENIZERS = {  # by the pattern, and the steps before it
    (PATTERNS["qwen2"], None): "qwen2",
    (PATTERNS["llama3"], None): LLAMA3,
    (PATTERNS["gpt2"], None): "gpt-2",
    (SHORT_GPT2, None): "gpt-2",
    (PATTERNS["gpt2"], DIGITS): "smollm",
}
ALIASES = {"llama3": LLAMA3, "llama-v3": LLAMA3, "gpt2": "gpt-2", "deepseek-r1-qwen": "qwen2"}  # of the same pattern
