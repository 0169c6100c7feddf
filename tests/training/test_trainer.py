import shutil

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.chat_model import ChatModel, initialise
from chatmill.model.layers import conversation_mask
from chatmill.processor import Processor
from chatmill.training.distributed import choose_device_kind, choose_processes
from chatmill.training.hardware import choose_compile, choose_precision, set_up_compiler
from chatmill.training.optimizer import MuonAdamW
from chatmill.training.packing import Batch
from chatmill.training.trainer import Trainer, takes_segments
from support.segments import attend_to_each

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_what_is_asked_for_is_chosen():
    assert [choose_precision(name) for name in ("float32", "bfloat16")] == ["float32", "bfloat16"]
    assert choose_compile(True, "float32", 0, 2) and not choose_compile(False, "bfloat16", 1e30, 2)
    assert (choose_device_kind("cpu"), choose_processes(3, "cpu")) == ("cpu", 3)


def test_compiling_does_not_pay_in_a_short_run_or_without_bfloat16():
    assert not choose_compile("auto", "bfloat16", 1e9, 2)
    assert not choose_compile("auto", "float32", 1e30, 2, processor=Processor())
    assert not choose_compile("auto", "bfloat16", 1e15, 1, "cuda")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no compiler")
def test_compiled_steps_give_the_same_weights_each_time_and_their_code_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    set_up_compiler()
    config = ModelConfig.from_depth(1, vocab_size=64, context=512)
    ids = np.random.default_rng(0).integers(0, 64, (8, 512))  # 4,096 tokens add their gradients to 64 rows
    batch = Batch(ids, np.tile(np.arange(512), (8, 1)), np.zeros_like(ids), ids, np.full_like(ids, 2))
    trained, found = [], []
    for _ in range(3):
        torch.compiler.reset()
        counters.clear()
        model = ChatModel(config)
        initialise(model, 1)
        options = {"steps": 3, "prompt_weight": 0.1, "precision": "bfloat16", "compiled": True}
        trainer = Trainer(model, MuonAdamW(model, 0.01, torch.bfloat16), torch.ones(64, dtype=torch.int64), **options)
        for _ in range(3):
            trainer.step([batch])
        trained.append(model.model.embed_tokens.weight)
        found.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert found == [0, 1, 1]
    assert all(torch.equal(weight, trained[0]) for weight in trained)


def test_only_nvidia_gpus_take_segments(monkeypatch):
    model, capability = ChatModel(ModelConfig.from_depth(1, vocab_size=64, context=64)), (8, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    cpu, gpu = map(torch.device, ("cpu", "cuda"))
    assert takes_segments(model, gpu, "bfloat16") and not takes_segments(model, gpu, "float32")
    assert not takes_segments(model, cpu, "bfloat16")
    capability = (7, 5)
    assert not takes_segments(model, gpu, "bfloat16")


def test_a_step_with_segments_learns_as_one_with_a_mask(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend_to_each)
    losses, config = [], ModelConfig.from_depth(2, vocab_size=64, context=64)
    ids = np.random.default_rng(0).integers(0, 64, (3, 64))
    places = np.tile(np.arange(64), (3, 1))
    batch = Batch(ids, places % 20, places // 20, ids, np.full_like(ids, 2))
    for has_segments in (False, True):
        model = ChatModel(config)
        initialise(model, 1)
        options = {"steps": 9, "prompt_weight": 0.1, "precision": "float32", "compiled": False}
        trainer = Trainer(model, MuonAdamW(model, 0.01, torch.float32), torch.ones(64, dtype=torch.int64), **options)
        trainer.has_segments = has_segments
        losses.append([trainer.step([batch]).loss for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and losses[0][2] < losses[0][0]


def test_the_norm_is_that_of_the_whole_gradient_and_measured_at_logged_steps_alone():
    model, ids = ChatModel(ModelConfig.from_depth(1, vocab_size=64, context=64)), np.arange(64)[None]
    initialise(model, 1)
    batch = Batch(ids, ids, np.zeros_like(ids), ids, np.full_like(ids, 2))
    options = {"steps": 9, "prompt_weight": 0.1, "precision": "float32", "compiled": False}
    trainer = Trainer(model, MuonAdamW(model, 0.01, torch.float32), torch.ones(64, dtype=torch.int64), **options)
    trainer.logged_steps = {2}
    trainer.step([batch])
    assert trainer.gradient_norm is None
    weights, at = list(model.parameters()), torch.from_numpy(ids)
    loss = model.nats(at, at, conversation_mask(torch.zeros_like(at)), at)[0].mean()
    squares = [gradient.double().square().sum() for gradient in torch.autograd.grad(loss, weights)]
    trainer.step([batch])
    assert trainer.gradient_norm == pytest.approx(float(sum(squares)) ** 0.5, rel=1e-5)


def test_one_process_is_started_where_there_is_no_gpu():
    assert choose_processes("auto", "cpu") == 1


@no_gpu
def test_a_gpu_that_is_not_there_is_told():
    assert choose_device_kind("auto") == "cpu"
    with pytest.raises(ValueError, match=r"train_model.device = cuda: PyTorch finds no GPU: set cpu, or auto"):
        choose_device_kind("cuda")


@gpu
def test_a_gpu_is_chosen_and_each_has_a_process():
    assert choose_device_kind("auto") == "cuda"
    assert choose_processes("auto", "cuda") == torch.cuda.device_count()
