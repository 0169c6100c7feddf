import pytest

from chatmill.tokenizer.vocabulary.patterns import check_expression, check_pattern

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HEAD, SPACES = r"[^\r\n\p{L}\p{N}]?", r"\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
HONEST = {
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\Z"
    r"|\s*[\r\n]|\s+(?!\S)|\s",
    "nanochat": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+",
    "words and spaces": r"\S+|\s+",
    "words, symbols and spaces": r"\w+|[^\w\s]+|\s+",
    "spaces before words": r" ?\S+|\s",
    "letters": r"\p{L}+|[\s\S]",
    "marks": r"(?:\p{L}\p{M}*)+|[\s\S]",
    "atomic letters": r"(?>\p{L}+)|[\s\S]",
    "lazy": r"\p{L}{1,3}?|[\s\S]",
    "lines": r"[^\n]+|\n",
    "gpt2 of tiktoken": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "clip": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "llama 4": rf"{HEAD}{UPPER}*{LOWER}+{CONTRACTION}?|{HEAD}{UPPER}+{LOWER}*{CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
    "tekken": rf"{HEAD}{UPPER}*{LOWER}+|{HEAD}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
    "deepseek v3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}",
    "deepseek v3, numbers": r"\p{N}{1,3}",
    "deepseek v3, ideographs": "[一-龥\u3040-ゟ゠-ヿ]+",
    "deepseek llm": r"\s+$",
    "falcon": "[0-9][0-9][0-9]",
}


@pytest.mark.parametrize("pattern", HONEST.values(), ids=HONEST)
def test_published_patterns_pass(pattern):
    check_expression(pattern)


def test_a_pattern_that_leaves_out_a_category_of_characters_is_refused():
    with pytest.raises(ValueError, match="does not match every character"):
        check_pattern(r"\p{L}+|\p{N}+|\p{M}+|[\p{P}\p{S}]+|\s+")


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(\w+\s?)*$", r"\s+\s+\s+\s+$"])
def test_a_pattern_that_takes_very_long_is_refused_with_a_text(pattern):
    with pytest.raises(ValueError, match=r"takes over .* s to split .* times"):
        check_expression(pattern)
