"""Codecs with tensors on a GPU at both ends, against the same on the CPU."""

import pytest
import torch

from p2pswarm.tensors.codecs.base import TORCH
from p2pswarm.tensors.codecs.registry import CODECS, encode, room

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
@pytest.mark.parametrize("shape", [(), (0,), (257,), (3, 1000, 700)])
def test_gpu_and_cpu_make_the_same_bytes_and_the_same_tensor(codec, shape):
    rng = torch.Generator().manual_seed(0)
    for dtype in sorted(codec.dtypes):
        here = (torch.randn(shape, generator=rng) * 50).to(TORCH[dtype])

        parcel = encode(here.cuda(), codec.name, inline_bytes=0)
        place = room(parcel.meta, torch.device("cuda"))
        place.buffer[:] = parcel.data
        got = place.finish()

        assert got.device.type == "cuda"
        assert bytes(parcel.data) == bytes(encode(here, codec.name).data)
        ours = room(parcel.meta)
        ours.buffer[:] = parcel.data
        assert torch.equal(got.cpu(), ours.finish())
