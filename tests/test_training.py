import pytest
import torch

from chatmill.distributed import choose_device, choose_processes
from chatmill.training import choose_compile, choose_precision

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_what_is_asked_for_is_chosen():
    assert [choose_precision(name) for name in ("float32", "bfloat16")] == ["float32", "bfloat16"]
    assert choose_compile(True, "float32", 0, 2) and not choose_compile(False, "bfloat16", 1e30, 2)
    assert (choose_device("cpu"), choose_processes(3, "cpu")) == ("cpu", 3)


def test_compiling_does_not_pay_in_a_short_run_or_without_bfloat16():
    assert not choose_compile("auto", "bfloat16", 1e9, 2)
    assert not choose_compile("auto", "float32", 1e30, 2)
    assert not choose_compile("auto", "bfloat16", 1e15, 1, "cuda")


def test_one_process_is_started_where_there_is_no_gpu():
    assert choose_processes("auto", "cpu") == 1


@no_gpu
def test_a_gpu_that_is_not_there_is_told():
    assert choose_device("auto") == "cpu"
    with pytest.raises(ValueError, match=r"train_model.device = cuda: PyTorch finds no GPU: set cpu, or auto"):
        choose_device("cuda")


@gpu
def test_a_gpu_is_chosen_and_each_has_a_process():
    assert choose_device("auto") == "cuda"
    assert choose_processes("auto", "cuda") == torch.cuda.device_count()
