"""What a device lacks is computed elsewhere."""

import pytest
import torch

from p2pswarm.models.compute.device_dtypes import lacks, place_for

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
    assert lacks(kind, dtype) is lacking


def test_what_a_device_lacks_is_computed_on_the_host():
    assert place_for(MPS, torch.float64) == CPU
    assert place_for(MPS, torch.float32) == MPS
    assert place_for(CUDA, torch.float64) == CUDA
