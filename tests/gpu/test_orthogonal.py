"""Matrices made orthogonal on a GPU: the bits of the CPU, whatever torch is allowed to round."""

import pytest
import torch

from p2pswarm.models.compute.orthogonal import Products, iterated, orthogonal, peaked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("shape", [(1, 8, 8), (4, 128, 512), (2, 700, 740), (3, 64, 4096)])
def test_a_gpu_gives_the_bits_of_the_cpu(shape, tf32, monkeypatch):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x[0] = x[0, :, :1] * x[0, :1]
    expected = orthogonal(x)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)

    assert torch.equal(orthogonal(x.cuda()).cpu(), expected)


def test_tf32_is_noticed_if_torch_is_not_asked(monkeypatch):
    x = torch.randn(1, 256, 512, generator=torch.Generator().manual_seed(1)).cuda()
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    products = Products(x, torch.float32)

    iterated(peaked(x), products)

    assert not products.agree
