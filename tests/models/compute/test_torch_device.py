"""Tests of `models/compute/torch_device.py`."""

import pytest
import torch
from models.of_ours import run_as_ours
from torch.utils.checkpoint import CheckpointError

from p2pswarm.base.errors import NotServing, Refused, Unusable
from p2pswarm.models.base import POSITION_KEY
from p2pswarm.models.compute.torch_device import (
    REASON_CHARS_MAX,
    computing,
    place_for,
    setting_up,
)
from p2pswarm.models.gpt import Layer
from p2pswarm.settings.config import ModelConfig

MPS, CUDA, CPU = (torch.device(kind) for kind in ("mps", "cuda:1", "cpu"))


@pytest.mark.parametrize(
    ("kind", "dtype", "lacking"),
    [
        ("mps", torch.float64, True),
        ("mps", torch.float32, False),
        ("mps", torch.bfloat16, False),
        ("mps", torch.int64, False),
        ("cuda", torch.float64, False),
        ("cpu", torch.float64, False),
        ("xpu", torch.float64, False),
    ],
)
def test_metal_alone_lacks_float64(kind, dtype, lacking):
    device = torch.device(kind)

    assert (place_for(device, dtype) != device) is lacking


def test_what_a_device_lacks_is_computed_on_the_host():
    assert place_for(MPS, torch.float64) == CPU
    assert place_for(MPS, torch.float32) == MPS
    assert place_for(CUDA, torch.float64) == CUDA


CPU_FULL = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError(CPU_FULL)]
)
def test_a_microbatch_without_memory_is_refused_with_the_remedy(error):
    with (
        pytest.raises(Refused, match=r"lower serve.graph_mib here, or run.batch.rows") as caught,
        computing(),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_any_other_error_of_torch_is_a_refusal_of_one_line():
    with pytest.raises(Refused, match="torch could not compute it: shapes") as caught, computing():
        raise RuntimeError("shapes " + "x" * 999 + "\nadvice")
    assert len(str(caught.value)) < REASON_CHARS_MAX + 50
    assert "advice" not in str(caught.value)


def test_a_block_that_does_something_else_the_second_time_is_the_models_fault():
    with pytest.raises(Refused, match="mend the model, which p2pswarm check-model"), computing():
        raise CheckpointError("torch.utils.checkpoint: A different number of tensors")


def test_a_lost_device_ends_the_server():
    with pytest.raises(Unusable, match="start this node again: CUDA error"), computing():
        raise torch.AcceleratorError("CUDA error: device-side assert")


@pytest.mark.parametrize("error", [NotServing("gone"), Unusable("theirs")])
def test_errors_of_ours_pass(error):
    with pytest.raises(type(error)), computing():
        raise error


def test_a_bug_of_ours_passes():
    with pytest.raises(KeyError, match="ours"):
        run_as_ours("with computing(): {}['ours']", computing=computing)


def test_an_index_out_of_range_is_refused_because_a_peer_may_have_sent_it():
    """Torch raises it from the frame that indexes, which is ours in the built-in model."""
    layer = Layer(ModelConfig(d_model=8, heads=2, sequence_length=4), torch.float32)
    bundle = {"x": torch.zeros(1, 4, 8), POSITION_KEY: torch.tensor([[0, 10**6, 2, 3]])}

    with pytest.raises(Refused, match="torch could not compute it: index 1000000 is"), computing():
        layer(bundle)


def test_what_a_models_own_code_raises_is_a_refusal_with_its_line():
    match = r"own code fails, mend it: KeyError: 'theirs' \(test_torch_device\.py, line \d+\)$"
    with pytest.raises(Refused, match=match), computing():
        raise KeyError("theirs")


def test_a_stage_without_memory_names_what_to_set():
    with (
        pytest.raises(Unusable, match=r"weights of stage 3: set serve.device .* run.stages"),
        setting_up(3),
    ):
        raise RuntimeError(CPU_FULL)
    with pytest.raises(RuntimeError, match="another"), setting_up(3):
        raise RuntimeError("another")


def test_a_real_allocation_that_fails_is_recognised():
    with pytest.raises(Refused, match="out of memory"), computing():
        torch.empty(1 << 60, dtype=torch.uint8)
