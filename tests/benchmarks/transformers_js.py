"""Greedy answers of transformers.js on the ONNX export, compared with chatmill's on the same graph.

    python tests/benchmarks/transformers_js.py MODEL CONVERSATIONS --packages FOLDER

MODEL is a folder of train_model; the prompts are first messages of CONVERSATIONS, such as data/chat/test.jsonl. FOLDER
has node_modules, after `npm install --ignore-scripts @huggingface/transformers` there. Answers do not end, so that all
are equally long.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import numpy as np

import export_onnx
from chatmill.conversation import IM_END
from chatmill.engines.engine import Engine
from chatmill.evaluation.held_out_set import read_test_set
from chatmill.inference.model_loading import load_model, open_onnx_engine

PROMPTS, TOKENS = 20, 64
GRAPHS = {"fp32": "model.onnx", "q8": "model_quantized.onnx", "int8": "model_int8.onnx", "q4": "model_q4.onnx"}
PROGRAM = Path(__file__).with_suffix(".js")


def answer(engine: Engine, prompt: list[int], end: int) -> list[int]:
    """The prompt, and the best ids after it but for `end`."""
    ids = list(prompt)
    engine.rewind(0)
    for _ in range(TOKENS):
        logits = engine.append(ids[engine.length :]).copy()
        logits[end] = -np.inf
        ids.append(int(logits.argmax()))
    return ids


def answers_of_transformers_js(folder: Path, dtype: str, prompts: list[list[int]], packages: Path) -> list[list[int]]:
    """The same of transformers.js. Raises CalledProcessError where it fails."""
    options = {"subfolder": "", "dtype": dtype}
    given = {"folder": str(folder), "options": options, "prompts": prompts, "count": TOKENS}
    command = ["node", "--input-type=module", "-e", PROGRAM.read_text(encoding="utf-8")]
    result = subprocess.run(
        command, cwd=packages, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True
    )
    ids: list[list[int]] = json.loads(result.stdout)
    return ids


def main() -> None:
    """Print for each dtype on how many prompts the ids are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("conversations", type=Path)
    parser.add_argument("--packages", type=Path, required=True, help="a folder with node_modules")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "onnx"
        export_onnx.main(options.model, folder, quantize=["int8", "int8_dynamic", "int4"])
        loaded = load_model(folder, "cpu")
        conversations = read_test_set(options.conversations, PROMPTS).conversations
        segments = [loaded.template.prompt(conversation[:1]) for conversation in conversations]
        prompts = [loaded.tokenizer.encode_segments(each)[0] for each in segments]
        for dtype, file in GRAPHS.items():
            engine = open_onnx_engine(folder / file, name=dtype)
            expected = [answer(engine, prompt, loaded.tokenizer.special[IM_END]) for prompt in prompts]
            found = answers_of_transformers_js(folder, dtype, prompts, options.packages)
            equal = sum(a == b for a, b in zip(expected, found, strict=True))
            print(f"{dtype:5} {file:21} equal on {equal} of {len(prompts)} prompts, {TOKENS} tokens each")


if __name__ == "__main__":
    main()
