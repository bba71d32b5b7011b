"""Memory that has no value yet, so that what a model's code leaves out is found and not guessed.

Parameters and buffers of a block lie in memory that was made without its constructor. What neither
`reset_parameters` nor the library's own code fills would hold zeros, or anything.

Errors:  none.
"""

import torch
from torch import Tensor


def unset(tensor: Tensor) -> Tensor:
    """Mark all elements as without a value: NaN, or the least whole number; returns the tensor."""
    with torch.no_grad():
        return tensor.fill_(_mark(tensor))


def is_unset(tensor: Tensor) -> bool:
    """Whether an element still has no value."""
    if tensor.is_floating_point():
        return bool(tensor.isnan().any())
    signed = tensor.dtype.is_signed
    return signed and bool((tensor == _mark(tensor)).any())


def _mark(tensor: Tensor) -> float:
    if tensor.is_floating_point():
        return float("nan")
    return torch.iinfo(tensor.dtype).min if tensor.dtype.is_signed else 0  # of these none is odd
