"""An adapter's forward and gradients are those of the merged weight, in every kind of module."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from p2pswarm.models.adapters.lora_modules import (
    LoraShape,
    add_to_embedding,
    add_to_linear,
    add_to_parameters,
    draw_adapters,
)

torch.manual_seed(1)
SHAPE = LoraShape(rank=3, scaling=0.5)


def filled(module: nn.Module) -> nn.Module:
    module = module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


class Experts(nn.Module):
    """Multiplies by parameters of its own, as the library's mixtures do."""

    def __init__(self, *, is_transposed: bool = False) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        up, down = ((4, 5, 6), (4, 3, 5))
        self.up = nn.Parameter(torch.empty(up[0], *(up[:0:-1] if is_transposed else up[1:])))
        self.down = nn.Parameter(
            torch.empty(down[0], *(down[:0:-1] if is_transposed else down[1:]))
        )
        self.router = nn.Parameter(torch.empty(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = (x @ self.router.T).softmax(-1)
        total = torch.zeros(len(x), 3, dtype=x.dtype)
        for expert in range(4):
            up, down = self.up[expert], self.down[expert]
            if self.is_transposed:
                up, down = up.T, down.T
            total = total + shares[:, expert : expert + 1] * F.linear(F.linear(x, up).tanh(), down)
        return total


def test_a_linear_layer_adds_its_low_rank_product() -> None:
    module = nn.Linear(6, 5)
    add_to_linear(module, SHAPE)
    filled(module)
    x = torch.randn(2, 7, 6, dtype=torch.float64)

    merged = module.weight + 0.5 * module.lora_B.weight @ module.lora_A.weight
    torch.testing.assert_close(module(x), F.linear(x, merged, module.bias))
    assert isinstance(module, nn.Linear)
    assert [name for name, _ in module.named_parameters()] == [
        "weight",
        "bias",
        "lora_A.weight",
        "lora_B.weight",
    ]


def test_an_embedding_that_scales_scales_its_adapter_too() -> None:
    class Scaled(nn.Embedding):
        embed_scale = torch.tensor(3.0)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * self.embed_scale

    module = Scaled(9, 4)
    add_to_embedding(module, SHAPE)
    filled(module)
    ids = torch.tensor([[0, 8, 3]])

    merged = module.weight + 0.5 * (module.lora_embedding_B @ module.lora_embedding_A).T
    torch.testing.assert_close(module(ids), 3.0 * F.embedding(ids, merged))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_experts_and_routers_compute_with_the_merged_weights(*, is_transposed: bool) -> None:
    plain = filled(Experts(is_transposed=is_transposed))
    module = Experts(is_transposed=is_transposed)
    add_to_parameters(module, {"up": SHAPE, "down": SHAPE, "router": LoraShape(2, 2.0)})
    filled(module)
    # of one module PEFT's wrappers lie in each other, and the last parameter's is the outermost
    places = {"router": "", "down": "base_layer.", "up": "base_layer.base_layer."}
    own = dict(module.named_parameters())
    x = torch.randn(5, 6, dtype=torch.float64)

    with torch.no_grad():
        for name, place in places.items():
            a, b = own[f"{place}lora_A.weight"], own[f"{place}lora_B.weight"]
            weight = own[name]
            if name == "router":
                delta = 2.0 * b @ a
            else:
                a = a.reshape(4, 3, -1)
                b = b.reshape(-1, 3, 4)
                delta = 0.5 * torch.einsum("ore,eri->eoi", b, a)
                delta = delta.mT if is_transposed else delta
            plain.get_parameter(name).copy_(weight + delta)

    torch.testing.assert_close(module(x), plain(x))
    assert not {"up", "down", "router"} & module.__dict__.keys()


def test_gradients_of_factors_are_those_of_the_product() -> None:
    module, merged = nn.Linear(6, 5, bias=False), nn.Linear(6, 5, bias=False).double()
    add_to_linear(module, SHAPE)
    filled(module)
    a, b = module.lora_A.weight, module.lora_B.weight
    with torch.no_grad():
        merged.weight.copy_(module.weight + 0.5 * b @ a)
    x = torch.randn(4, 6, dtype=torch.float64)

    module(x).square().sum().backward()
    merged(x).square().sum().backward()

    torch.testing.assert_close(b.grad, 0.5 * merged.weight.grad @ a.T)
    torch.testing.assert_close(a.grad, 0.5 * b.T @ merged.weight.grad)


def test_a_product_begins_as_zero() -> None:
    module = nn.Sequential(nn.Linear(16, 5), nn.Embedding(7, 4))
    add_to_linear(module[0], LoraShape(8, 1.0))
    add_to_embedding(module[1], LoraShape(8, 1.0))
    filled(module)
    draw_adapters(module)

    a, b = module[0].lora_A.weight, module[0].lora_B.weight
    assert not b.any()
    assert a.abs().max() <= 1 / math.sqrt(16)
    assert a.std() > 0.5 / math.sqrt(3 * 16)
    assert not module[1].lora_embedding_A.any()
    assert module[1].lora_embedding_B.any()
