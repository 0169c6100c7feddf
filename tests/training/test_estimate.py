import json
import os
import subprocess
import sys

import pytest
import torch

from chatmill.checkpoints.configuration import ModelConfig, Variant
from chatmill.model.chat_model import ChatModel
from chatmill.run_estimate import (
    available_memory,
    cgroup_memory,
    check_memory,
    flops_per_token,
    memory_needed,
    num_weights,
    peak_flops,
    report_out_of_memory,
)
from support.paths import SOURCE
from support.tiny import CONFIG

MEASURE = """
import json, sys
import numpy as np, torch
from chatmill.model.chat_model import ChatModel, initialise
from chatmill.checkpoints.configuration import ModelConfig
from chatmill.training.optimizer import MuonAdamW
from chatmill.training.packing import Batch
from chatmill.training.trainer import Trainer

def peak():
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

depth, vocab_size, length, rows, precision = json.loads(sys.argv[1])
torch.set_num_threads(1)
before = peak()
model = ChatModel(ModelConfig.from_depth(depth, vocab_size=vocab_size, context=length))
initialise(model, 1)
optimizer = MuonAdamW(model, 0.01, getattr(torch, precision))
num_bytes = torch.ones(vocab_size, dtype=torch.int64)
trainer = Trainer(model, optimizer, num_bytes, steps=9, prompt_weight=0.1, precision=precision, compiled=False)
ids = np.random.default_rng(0).integers(0, vocab_size, (rows, length))
positions = np.tile(np.arange(length), (rows, 1))
for _ in range(2):
    trainer.step([Batch(ids, positions, np.zeros_like(ids), ids, np.full_like(ids, 2))])
print(peak() - before)
"""


def shape(depth, vocab_size=320, context=64):
    return ModelConfig.from_depth(depth, vocab_size=vocab_size, context=context)


@pytest.mark.parametrize("config", [CONFIG, shape(1), shape(5), shape(8)])
def test_weights_are_counted_as_the_model_has_them(config):
    named = dict(ChatModel(config).named_parameters())
    matrices = sum(weight.numel() for name, weight in named.items() if "layers" in name and weight.ndim == 2)
    assert num_weights(config) == (matrices, sum(weight.numel() for weight in named.values()) - matrices)


def test_operations_of_a_token_by_hand():
    # 2 layers of 32 channels: queries and results 64 wide, keys and values 32, feed-forward 64; 320 logits.
    matrices = 2 * (32 * 64 * 2 + 32 * 32 * 2 + 3 * 32 * 64)
    assert flops_per_token(CONFIG, 100) == 6 * (matrices + 320 * 32) + 12 * 2 * 64 * 100


def test_torch_counts_as_many_operations():
    from torch.utils.flop_counter import FlopCounterMode

    model, ids = ChatModel(CONFIG), torch.zeros(1, 64, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(ids).sum().backward()
    without_attention = 64 * flops_per_token(CONFIG, 0)
    assert counter.get_total_flops() == pytest.approx(without_attention, rel=0.1)


def test_a_processor_is_measured():
    assert 1e8 < peak_flops(torch.device("cpu"), "float32") < 1e15


@pytest.mark.parametrize(
    ("name", "bfloat16", "float32"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12, 67e12),
        ("NVIDIA H100 PCIe", 756e12, 51e12),
        ("NVIDIA L40S", 362e12, 91.6e12),
        ("NVIDIA L4", 121e12, 30.3e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12),
        ("Abacus 9", None, None),
    ],
)
def test_a_gpu_is_known_by_its_name(monkeypatch, name, bfloat16, float32):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert [peak_flops(torch.device("cuda"), kind) for kind in ("bfloat16", "float32")] == [bfloat16, float32]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    "run",
    [
        pytest.param((3, 2048, 512, 4, "float32"), marks=pytest.mark.slow),
        (1, 32768, 256, 1, "bfloat16"),
        pytest.param((5, 512, 128, 4, "float32"), marks=pytest.mark.slow),
    ],
)
def test_a_run_takes_what_was_estimated(run):
    command = [sys.executable, "-c", MEASURE, json.dumps(run)]
    measured = int(subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True).stdout)
    depth, vocab_size, length, rows, precision = run
    estimated = memory_needed(shape(depth, vocab_size, length), rows, length, precision)
    assert estimated == pytest.approx(measured, rel=0.3)


def test_shards_share_the_weights_and_not_the_batch():
    whole, half, none = (memory_needed(shape(4), 64, 512, "float32", shards) for shards in (1, 2, 1 << 40))
    matrices, others = num_weights(shape(4))
    assert whole - half == pytest.approx((12 * matrices + 16 * others) / 2, abs=2)
    assert none > 1e8


def test_a_depth_that_does_not_fit_is_refused_with_the_largest_that_does():
    message = "depth = 24 needs about 24.0 GB of memory, and 14.5 GB are free: depth 14 is the largest that fits;"
    with pytest.raises(ValueError, match=message):
        check_memory(lambda depth: depth * 10**9, 24, int(14.5e9))
    with pytest.raises(ValueError, match=r"0\.5 GB are free: no depth fits; or lower context or batch_size"):
        check_memory(lambda depth: depth * 10**9, 24, int(0.5e9))


def test_a_depth_that_fits_is_let_be():
    largest = max(depth for depth in range(1, 60) if memory_needed(shape(depth), 4, 64, "float32") <= 10**10)
    check_memory(lambda depth: memory_needed(shape(depth), 4, 64, "float32"), largest, 10**10)
    with pytest.raises(ValueError, match=rf"depth = {largest + 1} needs .*: depth {largest} is the largest that fits"):
        check_memory(lambda depth: memory_needed(shape(depth), 4, 64, "float32"), largest + 1, 10**10)


def test_free_memory_is_less_than_the_machine_has():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_memory(torch.device("cpu")) < total


@pytest.mark.parametrize(
    ("version", "limit", "usage", "cached"),
    [
        ("0::/batch/job", "memory.max", "memory.current", "inactive_file"),
        ("4:memory:/batch/job", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_every_control_group_above_a_process_limits_it(tmp_path, version, limit, usage, cached):
    (tmp_path / "cgroup").write_text(f"9:cpu:/elsewhere\n{version}\n")
    top = tmp_path / "fs" / version.split(":")[1]
    (top / "batch/job").mkdir(parents=True)
    for folder, most in ((top, "1000"), (top / "batch", "300"), (top / "batch/job", "max")):
        (folder / limit).write_text(f"{most}\n")
        (folder / usage).write_text("200\n")
        (folder / "memory.stat").write_text(f"active_file 9\n{cached} 50\n")
    assert sorted(cgroup_memory(tmp_path / "cgroup", tmp_path / "fs")) == [150, 850]


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_used_up_memory_is_told(error):
    with (
        pytest.raises(ValueError, match=r"^out of memory: lower train_model.depth, context or batch_size$"),
        report_out_of_memory(),
    ):
        raise error


def test_other_errors_are_not_taken_for_used_up_memory():
    with pytest.raises(RuntimeError, match="shapes differ"), report_out_of_memory():
        raise RuntimeError("shapes differ")


def test_memory_that_torch_cannot_have_is_told():
    with pytest.raises(ValueError, match="out of memory"), report_out_of_memory():
        torch.empty(1 << 50)


def test_variants_without_norms_have_fewer_gains():
    config = ModelConfig(
        **{name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"variant": Variant(qk_norm=False)}
    )
    assert num_weights(CONFIG)[1] - num_weights(config)[1] == 2 * 2 * 16
