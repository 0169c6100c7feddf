"""A tiny model that is trained to repeat a few exchanges, so that its answers are known."""

import random
from dataclasses import replace

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from chatmill.conversation import LossKind, Message, Part, conversation_segments
from chatmill.pipeline.manifest import write_manifest
from support.tiny import CONFIG, VOCABULARY, byte_tokenizer, random_model, write_model

TRAINED_CONFIG = replace(CONFIG, hidden_size=64, intermediate_size=128, head_dim=32, max_position_embeddings=1 << 14)
STEPS, ROWS, RATE = 200, 4, 5e-3


def write_trained(folder, exchanges, endless):
    """Write a trained model; `exchanges` maps questions to the parts of their answers.

    It answers a question at the start of a chat, and after another exchange. The answer to `endless` never ends.
    """
    write_model(folder, TRAINED_CONFIG)
    torch.manual_seed(0)
    chosen, model = random.Random(0), random_model(TRAINED_CONFIG).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for _ in range(STEPS):
        rows = [chosen.sample(sorted(exchanges), chosen.choice([1, 1, 2])) for _ in range(ROWS)]
        optimizer.zero_grad()
        (sum(_loss(model, row, exchanges, endless) for row in rows) / ROWS).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        schedule.step()
    save_file(model.state_dict(), folder / "model.safetensors")
    write_manifest(folder, kind="model", fingerprint=VOCABULARY.fingerprint)
    return folder


def _loss(model, questions, exchanges, endless):
    """The cross-entropy of the assistant's tokens."""
    turns = [
        turn
        for one in questions
        for turn in (Message.from_text("user", one), Message("assistant", tuple(exchanges[one])))
    ]
    ids, losses = map(torch.tensor, byte_tokenizer().encode_segments(conversation_segments(turns)))
    trained = losses == LossKind.TRAINED
    if questions[-1] == endless:
        ids, trained = ids[:-2], trained[:-2]  # without its end
    return cross_entropy(model(ids[None, :-1])[0][trained[1:]], ids[1:][trained[1:]])


def text(words):
    """The parts of an answer of text only."""
    return [Part("text", words)]
