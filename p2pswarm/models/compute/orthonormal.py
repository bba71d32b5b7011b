"""Few directions made orthonormal, with the same bits on every processor.

Members of a stage have the same bytes of an averaged factor, and each makes it orthonormal itself.
So nothing here may depend on a processor: no LAPACK, and no matrix product, whose order of adding
is the library's. It is Gram and Schmidt's way in float64 on the host, with elementwise operations
that IEEE 754 rounds once, and sums by halving. All is done twice: what rounding leaves of the
earlier directions after the first time is gone after the second.

A direction that is next to nothing becomes zeros. Its last bits would decide where it points, and
two sums whose last bits differ would then give unlike gradients.

Shapes:  B matrices of R directions with C values each.
Source:  Vogels et al., "PowerSGD" (arXiv 1905.13727); Giraud et al., "Rounding error analysis of
  the classical Gram-Schmidt orthogonalization process" (2005): twice is enough.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import hashlib
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from p2pswarm.models.first_weights import standard_normals
from p2pswarm.models.rounding.gradient_grid import sum_by_halves

WEAKEST = 2.0**-14
"""Of the strongest direction, what one must have: the last bits of a sum in float64 then turn it by
some 1e-12 at most."""
TAG = "p2pswarm-factor-1"  # another way to draw is another tag
TIMES = 2


def orthonormal(x_BRC: Tensor) -> Tensor:
    """Orthonormal directions that span the same space, or zeros for what is next to nothing.

    In the dtype and on the device of `x_BRC`. A matrix with a value that is not finite is all NaN.
    """
    wide_BRC, finite_B = _peaked(x_BRC)
    norm_BR = _norms(wide_BRC)
    least_B = norm_BR.amax(1).mul_(WEAKEST)
    for _ in range(TIMES):
        wide_BRC = _once(wide_BRC, least_B)
        least_B = torch.full_like(least_B, WEAKEST)
    wide_BRC[~finite_B] = math.nan
    return wide_BRC.to(x_BRC.device, x_BRC.dtype)


def directions(x_BRC: Tensor, drawn: Callable[[], Tensor] | None = None) -> Tensor:
    """Directions of length one; those that `drawn` gives, or zeros, for what is next to nothing.

    In the dtype and on the device of `x_BRC`. A matrix with a value that is not finite is all NaN.
    """
    wide_BRC, finite_B = _peaked(x_BRC)
    norm_BR = _norms(wide_BRC)
    strong_BR1 = _above(norm_BR, norm_BR.amax(1, keepdim=True) * WEAKEST).unsqueeze(2)
    wide_BRC = wide_BRC / torch.where(strong_BR1, norm_BR.unsqueeze(2), math.inf)
    if drawn is not None and not strong_BR1.all():
        wide_BRC = torch.where(strong_BR1, wide_BRC, drawn().to(wide_BRC.dtype))
    wide_BRC[~finite_B] = math.nan
    return wide_BRC.to(x_BRC.device, x_BRC.dtype)


def drawn_directions(seed: int, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The first directions of the matrix `name`: of length one, and on the host.

    They depend on the run's seed and the matrix alone, so every cut and every peer draws the same.
    """
    hashed = hashlib.sha256(f"{TAG}:{seed}:{name}".encode()).digest()
    drawn_1RC = torch.from_numpy(standard_normals(hashed[:16], math.prod(shape))).view(1, *shape)
    return directions(drawn_1RC)[0].to(dtype)


def _once(x_BRC: Tensor, least_B: Tensor) -> Tensor:
    """Make each direction orthogonal to those before it, and of length one."""
    found_BRC = x_BRC.clone()
    for number in range(found_BRC.shape[1]):
        row_BC = found_BRC[:, number]
        norm_B = _norms(row_BC.unsqueeze(1))[:, 0]
        strong_B = _above(norm_B, least_B)
        row_BC.div_(torch.where(strong_B, norm_B, math.inf).unsqueeze(1))
        later_BKC = found_BRC[:, number + 1 :]
        if later_BKC.shape[1]:
            share_BK = _sums(later_BKC * row_BC.unsqueeze(1))
            later_BKC.sub_(share_BK.unsqueeze(2) * row_BC.unsqueeze(1))
    return found_BRC


def _peaked(x_BRC: Tensor) -> tuple[Tensor, Tensor]:
    """A copy in float64 on the host whose squares are finite, and which matrices were finite.

    It is scaled by a power of two, so exactly, until a matrix's largest value is next to one.
    """
    wide_BRC = x_BRC.detach().to("cpu", torch.float64)
    finite_B = torch.isfinite(wide_BRC).all(2).all(1)
    wide_BRC = torch.where(finite_B[:, None, None], wide_BRC, 0.0)
    _, exponent_B = np.frexp(wide_BRC.abs().amax((1, 2)).numpy())
    return torch.from_numpy(np.ldexp(wide_BRC.numpy(), -exponent_B[:, None, None])), finite_B


def _norms(x_BRC: Tensor) -> Tensor:
    # numpy's root, as IEEE 754 rounds it: torch's is MKL's, and a last bit away now and then
    return torch.from_numpy(np.sqrt(_sums(x_BRC * x_BRC).numpy()))


def _sums(x_BRC: Tensor) -> Tensor:
    return sum_by_halves(x_BRC.reshape(-1, x_BRC.shape[-1])).view(x_BRC.shape[:-1])


def _above(norm: Tensor, least: Tensor) -> Tensor:
    return (norm > least) & (norm > 0)
