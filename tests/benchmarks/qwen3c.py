"""Answers of a Q8_0 model file in C, beside PyTorch's on the same dequantized weights and on the model's own.

    python tests/benchmarks/qwen3c.py [MODEL] [--prompts FILE]

MODEL is a folder that `chatmill qwen3c` converts; FILE has conversations, of whose first questions 20 are asked. The
engine is tests/support/q8_engine.c: in float32, and with activations in int8 groups, as qwen3.c multiplies.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from chatmill.app.commands.qwen3c import MODEL, export_qwen3c
from chatmill.conversation import Message, conversation_segments, header_segments, parse
from chatmill.model.chat_model import load_chat_model
from chatmill.tokenizer.formats.tokenizer_loading import load
from support.q8_engine import answers_in_c, build_engine, greedy_ids
from support.qwen3c_weights import dequantized_model

COUNT, MAX_TOKENS = 20, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=Path("data/model"))
    parser.add_argument("--prompts", type=Path, default=Path("data/chat/test.jsonl"))
    options = parser.parse_args()
    tokenizer = load(options.model)
    questions: dict[str, None] = {}
    for line in options.prompts.read_text(encoding="utf-8").splitlines():
        talk = parse(json.loads(line)["text"])
        first = next((message.text for message in talk if message.role == "user"), None)
        if first and len(questions) < COUNT:
            questions[first] = None
    segments = [
        [*conversation_segments([Message.from_text("user", text)]), *header_segments("assistant")] for text in questions
    ]
    prompts = [list(tokenizer.encode_segments(each)[0]) for each in segments]
    stop = {tokenizer.special["<|bos|>"], tokenizer.special["<|im_end|>"]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build_engine(folder)
        if program is None:
            sys.exit("no C compiler")
        export_qwen3c(options.model, folder / "out")
        file = folder / "out" / MODEL
        original, _ = load_chat_model(options.model, torch.device("cpu"))
        models = {"dequantized": dequantized_model(file), "original": original.eval()}
        expected = {
            kind: [greedy_ids(model, prompt, MAX_TOKENS, stop) for prompt in prompts] for kind, model in models.items()
        }
        for activations in ("float", "int8"):
            found = [ids for ids, _ in answers_in_c(program, file, prompts, MAX_TOKENS, activations)]
            for kind, answers in expected.items():
                equal = sum(a == b for a, b in zip(found, answers, strict=True))
                print(f"C, {activations} activations: {equal} of {len(prompts)} as PyTorch on the {kind} weights")
        print("the first answer:", tokenizer.decode(expected["dequantized"][0]))


if __name__ == "__main__":
    main()
