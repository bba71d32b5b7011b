"""A block's weights as the plain model has them: unpacked, and with their adapters merged.

Merging is W + s B A in the model's dtype, rounded once. Gradients of the factors pass through.

Shapes:  as the parameters.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from p2pswarm.models.adapters.lora_modules import (
    LoraEmbedding,
    LoraLinear,
    LoraParameters,
    is_of_adapter,
)
from p2pswarm.models.formats.product_modules import (
    PackedEmbedding,
    PackedLinear,
    PackedParameters,
    PackedWeight,
)


def dense_weights(
    block: nn.Module, dtype: torch.dtype, *, merges: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the model itself, by their names in the block, in their order.

    `merges`: with their adapters.
    """
    modules = dict(block.named_modules())
    for name, parameter in block.named_parameters():
        if is_of_adapter(name):
            continue
        owner, _, own = name.rpartition(".")
        module = modules[owner]
        packed = _packed(module).get(own)
        dense = parameter.to(dtype) if packed is None else packed.dense(dtype)
        yield name, _with_adapter(module, own, dense) if merges else dense


def _packed(module: Any) -> Mapping[str, PackedWeight]:
    if isinstance(module, PackedParameters):
        return module.packed
    if isinstance(module, PackedLinear | PackedEmbedding) and module.packed is not None:
        return {"weight": module.packed}
    return {}


def _with_adapter(module: Any, name: str, dense: Tensor) -> Tensor:
    if isinstance(module, LoraParameters) and name in module.lora_scalings:
        return module.merged(name, dense)
    if name != "weight":
        return dense
    if isinstance(module, LoraLinear):
        product = module.lora_B.weight @ module.lora_A.weight * module.lora_scaling
        return dense + (product if isinstance(module, nn.Linear) else product.mT)
    if isinstance(module, LoraEmbedding):
        product = module.lora_embedding_B @ module.lora_embedding_A * module.lora_scaling
        return dense + product.mT
    return dense
