import re
import sys

import torch

from chatmill.encoded.token_files import token_byte_lengths
from chatmill.run_display import Display
from chatmill.training.optimizer import MuonAdamW
from chatmill.training.trainer import LossTotals, Trainer
from support.tiny import CONFIG, VOCABULARY, random_model

TOKENS = 1000  # of a step
SUMS = LossTotals(3000.0, 1000.0, 693.147180559945, 500)  # 3 nats a token, 2 bits a byte


def shown(steps, seconds, extra=0.0, resumed=0):
    """What a run logs whose steps take so many seconds each, and the first some more."""
    model, now, lines = random_model(CONFIG), [50.0], []
    num_bytes = torch.from_numpy(token_byte_lengths(VOCABULARY))
    optimizer = MuonAdamW(model, 0.01, torch.float32)
    trainer = Trainer(model, optimizer, num_bytes, steps=steps, prompt_weight=0.1, precision="float32", compiled=False)
    trainer.completed_steps = resumed
    with Display(trainer, [(steps, 1.0)], lines.append, lambda: now[0]) as display:
        for step in range(resumed + 1, steps + 1):
            now[0] += seconds + extra * (step == 1)
            trainer.completed_steps = step
            display.update(1, TOKENS, SUMS)
            display.describe(SUMS)
    return lines


def test_without_a_terminal_lines_say_where_the_run_is():
    lines = shown(150, 1.0)
    assert lines[:2] == [
        "step 5 of 150: loss 3.000, 2.000 bits/byte, 1,000 tokens/s, 2 minutes left",
        "about 2 minutes remain, by the time that the last 5 steps took",
    ]
    assert [int(step) for step in re.findall(r"step (\d+) of", "\n".join(lines))] == [5, 10, 20, 40, 80, 140, 150]
    assert lines[-2:] == [
        "step 140 of 150: loss 3.000, 2.000 bits/byte, 1,000 tokens/s, 10 s left",
        "step 150 of 150: 2 minutes since the start, 1,000 tokens/s",
    ]


def test_the_estimate_leaves_out_the_time_to_compile():
    lines = shown(150, 1.0, extra=35)
    assert lines[-1] == "step 150 of 150: 3 minutes since the start, 811 tokens/s"
    assert lines[:2] == [
        "step 1 of 150: loss 3.000, 2.000 bits/byte, 28 tokens/s",
        "step 5 of 150: loss 3.000, 2.000 bits/byte, 1,000 tokens/s, 2 minutes left",
    ]


def test_a_short_run_is_silent():
    assert shown(100, 0.04) == []


def test_a_resumed_run_says_which_steps_took_the_time():
    assert shown(150, 1.0, resumed=30)[-1] == (
        "step 150 of 150: 2 minutes since step 30, from which it resumed, 1,000 tokens/s"
    )


def test_on_a_terminal_there_is_a_bar_and_the_estimate(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert shown(150, 1.0) == [
        "about 2 minutes remain, by the time that the last 5 steps took",
        "step 150 of 150: 2 minutes since the start, 1,000 tokens/s",
    ]
    assert "train:" in capsys.readouterr().err
