"""Matrices made orthogonal on a GPU: the bits of the CPU, whatever torch is allowed to round."""

from contextlib import contextmanager

import pytest
import torch

from p2pswarm.models.compute.orthogonal import Products, iterated, orthogonal, peaked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@contextmanager
def tf32_allowed(allowed: bool):
    """torch's settings are no plain attributes: `monkeypatch` cannot put them back."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("shape", [(1, 8, 8), (4, 128, 512), (2, 700, 740), (3, 64, 4096)])
def test_a_gpu_gives_the_bits_of_the_cpu(shape, tf32):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x[0] = x[0, :, :1] * x[0, :1]
    expected = orthogonal(x)

    with tf32_allowed(tf32):
        assert torch.equal(orthogonal(x.cuda()).cpu(), expected)


def test_tf32_is_noticed_if_torch_is_not_asked():
    x = torch.randn(1, 256, 512, generator=torch.Generator().manual_seed(1)).cuda()
    products = Products(x, torch.float32)

    with tf32_allowed(True):
        iterated(peaked(x), products)

    assert not products.agree
