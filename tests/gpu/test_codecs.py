"""Codecs with tensors on a GPU at both ends, against the same on the CPU."""

import pytest
import torch

from p2pswarm.tensors.codecs.base import FLOATS, TORCH
from p2pswarm.tensors.codecs.registry import CODECS, decoder, encode
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
KEY = bytes(range(8))


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
@pytest.mark.parametrize("shape", [(), (0,), (257,), (3, 1000, 700)])
def test_gpu_and_cpu_make_the_same_bytes_and_the_same_tensor(codec, shape):
    rng = torch.Generator().manual_seed(0)
    for dtype in sorted(codec.dtypes):
        here = (torch.randn(shape, generator=rng) * 50).to(TORCH[dtype])

        encoded_tensor = encode(here.cuda(), codec.name, inline_bytes=0, key=KEY)
        place = decoder(encoded_tensor.meta, TensorPool(torch.device("cuda")), KEY)
        place.buffer[:] = encoded_tensor.data
        got = place.finish()

        stays = codec.name == "raw" and dtype not in FLOATS  # tokens are checked on the host
        assert got.device.type == ("cpu" if stays else "cuda")
        assert bytes(encoded_tensor.data) == bytes(encode(here, codec.name, key=KEY).data)
        ours = decoder(encoded_tensor.meta, key=KEY)
        ours.buffer[:] = encoded_tensor.data
        assert torch.equal(got.cpu(), ours.finish())
