"""Texts that tokenizers find hard, and real ones in many languages."""

import os
import random

from hypothesis import strategies as st

from chatmill.conversation import CONTROL_TOKENS
from support.paths import SHARED

REAL = SHARED / "text"
REAL_TEXTS = [f"{name}/*" for name in ("tatoeba_laser", "blns", "emoji", "classic_books", "wikitext2", "tinystories")]
SAMPLE_TEXT = """
the cat sat on a mat and they talked about tea, honey & bread. Don't worry! 12 naïve cafés; Überraschung größer señor
mañana élève garçon привет мир доброе утро 你好 世界 今日は いい 天気 ですね 안녕 하세요 مرحبا שלום नमस्ते 👋 🙂 👩‍👩‍👧 é
def f(x): return x**2 ... ?! --- 3.14 2024 https://example.org <b> </b> I'll we've isn't talking talked walked walking
"""
FORGED = r"""
<| <\| < ' ##a → a→b [UNK] <unk> <s> <0x41> ▁the Ġthe ẞ ſ's'S 𝒳𝕐 🏳️‍🌈🇩🇪 ﷺ Z̴͙a̵l̸g̶o̷ <|unused_0|> <|im_end|<|im_end <||>
"""
FRACTION = float(os.environ.get("CHATMILL_SHARE", "1"))  # of the texts and mutated files that slow tests make
SAMPLE = os.environ.get("CHATMILL_TEXTS", "20000")  # how many real texts the slow tests take; or all
WORDS = SAMPLE_TEXT.split()
BLANKS = ["", "\0", "\r\n", "\n\n\n", "\t", "\u2581", "a\u2581b", "\u00a0\u3000", "\u200b\ufeff", "\x85\u2028"]
BLANKS += ["\ue000\U0010ffff"]
RUNS = ["a" * 3000, " " * 3000, "é" * 300, "\n" * 500, "ab" * 400]
NAUGHTY = [*FORGED.split(), *BLANKS, *RUNS, *CONTROL_TOKENS]
TEXTS = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*WORDS, *NAUGHTY, " ", "  ", "\n"])).map("".join),
    st.lists(st.sampled_from(WORDS)).map(" ".join),
)


def real_lines(sample=None):
    """Distinct lines in 112 languages, naughty strings, emoji, prose and books: a `sample` of so many, or all."""
    files = sorted(file for pattern in REAL_TEXTS for file in REAL.glob(pattern) if file.is_file())
    lines = dict.fromkeys(line for file in files for line in file.read_text("utf-8", errors="replace").split("\n"))
    chosen = list(lines) if sample in (None, "all") else random.Random(1).sample(list(lines), int(sample))
    return [*NAUGHTY, *chosen]
