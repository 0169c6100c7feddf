"""Sums in transformers: with the calculator declared and a loop of ten lines, and without it.

    python tests/benchmarks/sums.py [MODEL] [--sums N] [--seed N]

MODEL is a folder that train_model wrote (default: data/model). Declared: N sums of numbers below 1,000, of which the
result is asked in the words of everyday; right is an answer that contains it. Not declared: N/3 sums that a model does
by itself (up to 20, products up to 5 times 5), and as many larger ones, to which the answer is that there is no
calculator, without a number. All answers are greedy. Needs `pip install 'chatmill[hf]'`.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "stages"))

import transformers  # noqa: E402

from chatmill.calculator import calculate  # noqa: E402
from chatmill.evaluation.intervals import wilson  # noqa: E402

CALCULATOR = {"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}
QUESTIONS = ("What is {}?", "what's {}", "Calculate {}.", "{}", "How much is {}?", "Can you work out {}?", "{} = ?")
MAX_TOKENS = 64


def answer(model: Any, tokenizer: Any, question: str, tools: list[dict[str, Any]] | None) -> tuple[str, bool]:
    """The answer of transformers' `generate`, which stops at the end of a call, and whether it ended by itself."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    start = len(text)
    while True:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=MAX_TOKENS, do_sample=False)
        text = tokenizer.decode(out[0])
        call = re.search(r"<\|python_start\|>([^<]*)<\|python_end\|>$", text)
        if call is None:
            break
        text += f"<|output_start|>{calculate(call[1])}<|output_end|>"
    written = text[start:]
    return written.rpartition("<|output_end|>")[2].removesuffix("<|im_end|>"), written.endswith("<|im_end|>")


def large(random: Random) -> tuple[str, str]:
    """A sum beyond those that a model does by itself, and its result."""
    sign = random.choice("+-*/")
    b = random.randint(2, 30) if sign in "*/" else random.randint(21, 999)
    a = b * random.randint(2, 30) if sign == "/" else random.randint(21, 999)
    return f"{a} {sign} {b}", calculate(f"{a}{sign}{b}")


def small(random: Random) -> tuple[str, str]:
    """A sum that a model does by itself, and its result."""
    sign = random.choice("+-*")
    if sign == "*":
        a, b = random.randint(0, 5), random.randint(0, 5)
    else:
        low, high = sorted((random.randint(0, 20), random.randint(0, 20)))
        a, b = (low, high - low) if sign == "+" else (high, low)
    return f"{a} {sign} {b}", calculate(f"{a}{sign}{b}")


def contains(text: str, result: str) -> bool:
    """Whether a number stands in a text."""
    return re.search(rf"(?<![\d.-]){re.escape(result)}(?!\d|\.\d)", text) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "data/model")
    parser.add_argument("--sums", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model).eval()
    random = Random(options.seed)
    for name, make, tools, number in (
        ("declared, right", large, [CALCULATOR], options.sums),
        ("small, not declared, right", small, None, options.sums // 3),
        ("larger, not declared, no number", large, None, options.sums * 2 // 3),
    ):
        good, ended = 0, 0
        for _ in range(number):
            text, result = make(random)
            question = random.choice(QUESTIONS).format(text)
            reply, stopped = answer(model, tokenizer, question, tools)
            refuses = "no calculator" in reply and not re.search(r"\d", reply)
            fine = refuses if name.startswith("larger") else contains(reply, result)
            good, ended = good + fine, ended + stopped
            if not fine:
                print(f"    {question!r}: {reply!r}, expected {result}")
        low, high = wilson(good, number)
        print(f"{name:32} {good} of {number} [{low:.2f}, {high:.2f}], ended by themselves {ended}", flush=True)


if __name__ == "__main__":
    main()
