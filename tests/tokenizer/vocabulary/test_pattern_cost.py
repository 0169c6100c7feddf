"""Patterns of linear time pass, and others are refused with a text that shows it."""

import pytest
import regex

from chatmill.tokenizer.vocabulary.pattern_cost import Engine, characters, check_time, slow_text
from chatmill.tokenizer.vocabulary.pattern_program import compile
from chatmill.tokenizer.vocabulary.patterns import PATTERN_SAMPLE, PATTERNS, bounded, known_patterns, resolve
from support.official_patterns import OFFICIAL

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HEAD, SPACES = r"[^\r\n\p{L}\p{N}]?", r"\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
HONEST = OFFICIAL | {
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
SLOW = [
    r"[\s\S]*?x|[\s\S]",
    r"(a+)+$",
    r"(a|a)*(?=b)|[\s\S]",
    r"a+a+a+x|[\s\S]",
    r"x\s*\s*y|[\s\S]",
    r"<[^>]*>|[\s\S]",
    r"abc[^x]*x|[\s\S]",
    r"(?:foo|bar)[\s\S]*z|[\s\S]",
    r"\p{Lu}\p{Ll}\d[^!]*!|[\s\S]",
    r"(?=[\s\S]*Q)[\s\S]|[\s\S]",
    r"(?<=\n)b[\s\S]*c|[\s\S]",
    r"(?i:k)[^q]*q|[\s\S]",
    r"[\s\S]{0,2000}?x|[\s\S]",
    "a?" * 30 + "a" * 30 + r"|[\s\S]",
    "(?:a|a)" * 30 + r"b|[\s\S]",
    "|".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") + r"|ы[\s\S]*?x|[\s\S]",
]


@pytest.mark.parametrize("pattern", HONEST.values(), ids=HONEST)
def test_honest_patterns_pass(pattern):
    check_time(pattern)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", sorted(known_patterns()), ids=lambda pattern: pattern[:30])
def test_known_patterns_would_pass(pattern):
    assert slow_text(pattern) is None


@pytest.mark.parametrize("pattern", SLOW, ids=lambda pattern: pattern[:30])
def test_slow_patterns_are_refused_with_a_text(pattern):
    with pytest.raises(
        ValueError, match=r"^it takes very long on some text, such as '.*time grows faster than the text$"
    ):
        check_time(pattern)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(" * 3000 + "a" + ")" * 3000, "nested"),
        ("(?:a{1000}){1000}", "too many"),
        ("(?x:a)", "flag 'x'"),
        ("a)", "`\\)`"),
    ],
)
def test_patterns_that_are_not_understood_are_refused(pattern, message):
    with pytest.raises(ValueError, match=message):
        check_time(pattern)


def test_a_pattern_of_ones_own_that_is_slow_is_refused_as_a_parameter():
    with pytest.raises(ValueError, match="takes very long"):
        resolve(r"[\s\S]*?x")


@pytest.mark.parametrize(
    "pattern", [*PATTERNS.values(), bounded(PATTERNS["qwen2"]), *HONEST.values()], ids=lambda pattern: pattern[:30]
)
def test_the_engine_that_counts_steps_finds_the_matches_of_regex(pattern):
    program = compile(pattern)
    for instruction in characters(program):
        instruction.members = frozenset(filter(instruction.matches, PATTERN_SAMPLE))
    assert list(Engine(program).matches(PATTERN_SAMPLE)) == [m[0] for m in regex.finditer(pattern, PATTERN_SAMPLE)]
