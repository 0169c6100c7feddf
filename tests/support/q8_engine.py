"""The engine in C that runs a Q8_0 model file, and the same answers by PyTorch."""

import shutil
import struct
import subprocess

import torch

from support.paths import ROOT


def build_engine(folder):
    """Compile the engine without a warning; None without a C compiler."""
    if shutil.which("cc") is None:
        return None
    program, source = folder / "q8_engine", ROOT / "tests/support/q8_engine.c"
    subprocess.run(["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", source, "-o", program, "-lm"], check=True)
    return program


def answers_in_c(program, model, prompts, max_tokens, activations="float"):
    """The ids and the bytes of the answer to each prompt."""
    data = b"".join(struct.pack(f"<I{len(ids)}I", len(ids), *ids) for ids in prompts)
    command = [program, model, f"{model}.tokenizer", str(max_tokens), activations]
    output, place, found = subprocess.run(command, input=data, stdout=-1, check=True).stdout, 0, []
    for _ in prompts:
        (count,) = struct.unpack_from("<I", output, place)
        ids = list(struct.unpack_from(f"<{count}I", output, place + 4))
        (length,) = struct.unpack_from("<I", output, place + 4 + 4 * count)
        place += 8 + 4 * count + length
        found.append((ids, output[place - length : place]))
    assert place == len(output)
    return found


@torch.inference_mode()
def greedy_ids(model, prompt, max_tokens, stop):
    """The likeliest ids, one after another, without a cache, until one is in `stop`."""
    ids = list(prompt)
    while len(ids) < min(len(prompt) + max_tokens, model.config.max_position_embeddings):
        following = int(model(torch.tensor([ids]), last_only=True)[0, -1].argmax())
        if following in stop:
            break
        ids.append(following)
    return ids[len(prompt) :]
