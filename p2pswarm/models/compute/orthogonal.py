"""Matrices made orthogonal by exact products, with the same bits on every processor.

Processors add the products of a matrix product up in different orders, and round differently. Here
the factors are whole numbers, and the sums stay so small that their dtype has them exactly, in
whatever order, fused or not. What is rounded is rounded element by element, as IEEE 754 says. For
weights in float32 the products are float32, also on GPUs whose float64 is slow.

**When a product is exact.** Each row of the first factor and each column of the second has a norm
below 2**12. Then every part of every sum of products is below 2**24 (Cauchy-Schwarz, for whichever
terms), and float32 has all whole numbers up to there. In the first product this is so by
construction; in all it is measured, in float32: a sum of squares never falls while it is added up,
so one that ends below 2**24 was exact all the way, and one that should not be below 2**24 is not. A
matrix with a longer row or column in any product keeps its direction and is only scaled. That takes
half a million elements that are all alike: then rounding errors are, too, and add up.

Weights in float64 have factors below 2**26, and X begins as whole numbers of that size. So two sums
whose last bits differ become the same X, unless an element lies that close to a half. float32 has
no room for this.

**Why 12 bits are enough.** What becomes orthogonal, X, is kept as it is, and only factors are
rounded. In X <- a X + B X with B = b A + c A A and A = X X^T, small singular values live in the
first term, which no product touches; what rounding does to B turns singular vectors by a hundredth.
Others compute this in bfloat16, and round X itself to 8 bits.

**No TF32.** A processor may round the factors of a float32 product to 11 bits or to 8 if somebody
lets it: by torch's settings, by autocast, by a library's own ways. The products are float64 then,
which gives the same bits. torch is asked; and for the rest the norms of rows come twice, from
squares added up and from the product of a matrix with its transpose, and have to be equal.

Units:   whole numbers in factors; X has none.
Shapes:  B matrices of R rows and C columns, R <= C, 2**19 elements each at most.
Source:  Keller Jordan et al., Muon (2024).
"""
# ruff: noqa: N802, N803, N806  shapes are written at the end of names

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from p2pswarm.models.compute.torch_device import CPU

FIRST, THIRD, FIFTH = 3.4445, -4.7750, 2.0315  # of the odd polynomial that each step applies
STEPS = 4
REACH = 1.2025  # the most that the polynomial makes of 0..1.25
STEEPEST = 2.806  # the largest |THIRD a + FIFTH a a| for a in 0..REACH**2
ROOM = 1.1  # for what rounding adds to norms: 1 % at most in momentum of real training
PEAK = 65_536.0  # the largest element of a matrix that is measured: float64 has the sum of squares
SHORT = 1.02  # a measured norm falls short of the true one by 1.1 % at most
START = 224 / 256  # of the norm that factors may have: rounding adds sqrt(2**19) / 2 = 362 to it
COARSE_BITS = 16  # of what scales a matrix: a last bit that differs in X changes it hardly ever
TINY = 1e-28  # a matrix whose elements are all smaller becomes zero
HALVED_ROWS = 256  # so many rows are worth computing half of a symmetric product


@dataclass(frozen=True, slots=True)
class Units:
    """The fineness of whole numbers whose products a dtype has exactly."""

    dtype: torch.dtype
    norm: int
    """Rows and columns of factors are shorter."""
    finer: int
    """How much finer X is at the start than factors are."""

    def of(self, largest: float) -> float:
        """Units in 1, for a factor whose largest singular value is that."""
        return float(int(self.norm / (largest * ROOM)))

    def near(self, value: float) -> float:
        """The nearest number of the dtype: so no processor has to round it."""
        return float(torch.tensor(value, dtype=self.dtype).item())


UNITS = {
    torch.float32: Units(torch.float32, 1 << 12, 1 << 12),
    torch.float64: Units(torch.float64, 1 << 26, 1),
}


def orthogonal(x_BRC: Tensor) -> Tensor:
    """Matrices with the same singular vectors, and singular values near 1 unless they were tiny.

    They have the dtype of `x_BRC`, float32 or float64, and are where `place_of` says.
    """
    x_BRC = peaked(x_BRC.to(place_of(x_BRC.device)))
    tall = x_BRC.shape[1] > x_BRC.shape[2]
    x_BRC = x_BRC.mT if tall else x_BRC
    dtypes = [torch.float32] if float32_is_exact(x_BRC.device) else []
    for dtype in (*dtypes, torch.float64):
        products = Products(x_BRC, max(dtype, x_BRC.dtype, key=lambda each: each.itemsize))
        found_BRC = iterated(x_BRC, products)
        if products.agree:
            break
    return found_BRC.mT if tall else found_BRC


def place_of(device: torch.device) -> torch.device:
    """The device itself if it is known to multiply float32 as IEEE 754 says, else the CPU."""
    return device if device.type in {"cpu", "cuda"} else CPU


def float32_is_exact(device: torch.device) -> bool:
    """Return whether torch leaves the factors of a float32 product as they are."""
    try:
        whole = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set in torch's older way and in its newer one, which differ
        return False
    return whole and not torch.is_autocast_enabled(device.type)


class Products:
    """Products of matrices of whole numbers, and whether they can be believed."""

    def __init__(self, like_BRC: Tensor, dtype: torch.dtype, longest: int | None = None) -> None:
        """`dtype`: of the computation; `longest`: a row or column of a factor is shorter."""
        self._dtype = dtype
        self._limit = (longest or UNITS[like_BRC.dtype].norm) ** 2
        self._longest_B = like_BRC.new_zeros(like_BRC.shape[0])
        self._agree = torch.ones((), dtype=torch.bool, device=like_BRC.device)

    @property
    def fit_B(self) -> Tensor:
        """True for a matrix of which all factors were as short as exact products need them."""
        return self._longest_B < self._limit

    @property
    def agree(self) -> bool:
        """True if the norm of each row came out of its product; waits for the device."""
        return bool(self._agree)

    def gram(self, x_BRC: Tensor) -> Tensor:
        """X times its transpose; the columns of X are checked too, since B X comes next."""
        square_BRC = x_BRC * x_BRC
        rows_BR = square_BRC.sum(2)
        self._note(rows_BR)
        self._note(square_BRC.sum(1))
        a_BRR = self._symmetric(x_BRC, x_BRC.mT)
        self._compare(rows_BR, a_BRR)
        return a_BRR

    def square(self, a_BRR: Tensor) -> Tensor:
        """A symmetric matrix times itself; its diagonal has the longest numbers of all factors."""
        rows_BR = (a_BRR * a_BRR).sum(2)
        self._note(rows_BR)
        found_BRR = self._symmetric(a_BRR, a_BRR)
        self._compare(rows_BR, found_BRR)
        return found_BRR

    def times(self, b_BRR: Tensor, x_BRC: Tensor) -> Tensor:
        """B times an X that `gram` has seen."""
        self._note((b_BRR * b_BRR).sum(2))
        return self._product(b_BRR, x_BRC)

    def _compare(self, rows_BR: Tensor, product_BRR: Tensor) -> None:
        self._agree &= (rows_BR == product_BRR.diagonal(dim1=1, dim2=2)).all()

    def _note(self, squares: Tensor) -> None:
        torch.maximum(self._longest_B, squares.amax(1), out=self._longest_B)

    def _symmetric(self, x_BRC: Tensor, y_BCR: Tensor) -> Tensor:
        """A product that is symmetric: on a CPU a quarter of a large one is copied."""
        rows = x_BRC.shape[1]
        if x_BRC.device.type != "cpu" or rows < HALVED_ROWS:
            return self._product(x_BRC, y_BCR)
        half = rows // 2
        found_BRR = x_BRC.new_empty(x_BRC.shape[0], rows, rows)
        found_BRR[:, :half, :half] = self._product(x_BRC[:, :half], y_BCR[:, :, :half])
        found_BRR[:, half:] = self._product(x_BRC[:, half:], y_BCR)
        found_BRR[:, :half, half:] = found_BRR[:, half:, :half].mT
        return found_BRR

    def _product(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(x.to(self._dtype), y.to(self._dtype)).to(x.dtype)


def iterated(x_BRC: Tensor, products: Products) -> Tensor:
    """Newton-Schulz steps, from what `peaked` makes."""
    units = UNITS[x_BRC.dtype]
    x_units, a_units, b_units = (units.of(most) for most in (REACH, REACH**2, STEEPEST))
    scale_B11 = _scale(x_BRC, units)
    factor_BRC = (x_BRC * scale_B11).round_()
    a_BRR = products.gram(factor_BRC)
    unit_B11 = _coarse(_norm_bound(a_BRR, units).reciprocal().to(units.dtype))
    begun_BRC = (x_BRC * (scale_B11 * units.finer)).round_().mul_(unit_B11 * (1 / units.finer))
    x_BRC = begun_BRC
    for step in range(STEPS):
        if step:
            factor_BRC = (x_BRC * x_units).round_()
            a_BRR = products.gram(factor_BRC)
            unit_B11 = torch.full_like(unit_B11, 1.0 / x_units)
        a_BRR.mul_(unit_B11 * unit_B11)
        square_BRR = products.square((a_BRR * a_units).round_())
        square_BRR.mul_(units.near(FIFTH * b_units / a_units**2))
        b_BRR = square_BRR.add_(a_BRR.mul_(units.near(THIRD * b_units))).round_()
        moved_BRC = products.times(b_BRR, factor_BRC).mul_(unit_B11 * units.near(1.0 / b_units))
        x_BRC = (x_BRC * units.near(FIRST)).add_(moved_BRC)
    return torch.where(products.fit_B[:, None, None], x_BRC, begun_BRC)


def peaked(x_BRC: Tensor) -> Tensor:
    """Each matrix times what makes its largest element about `PEAK`."""
    peak_B11 = x_BRC.abs().amax((1, 2), keepdim=True)
    shift_B11 = torch.full_like(peak_B11, PEAK).div_(peak_B11)
    return x_BRC * torch.where(peak_B11 > TINY, _coarse(shift_B11), 0.0)


def _scale(x_BRC: Tensor, units: Units) -> Tensor:
    """The scale that makes each matrix's longest row or column as long as a factor's may be."""
    square_BRC = x_BRC.round().square_()  # rounded to the dtype, and whole numbers all the same
    sums = (square_BRC.sum(way, dtype=torch.float64).amax(1) for way in (1, 2))
    norm_B = torch.maximum(*sums).clamp_(min=1.0).sqrt_().mul_(SHORT)
    longest_B = torch.full_like(norm_B, units.norm * START)
    return _coarse(longest_B.div_(norm_B).to(units.dtype))[:, None, None]


def _norm_bound(a_BRR: Tensor, units: Units) -> Tensor:
    """A bound of the largest singular value of X: the root of the Frobenius norm of A = X X^T."""
    coarser = units.norm**2 / PEAK
    square_BRR = (a_BRR * (1.0 / coarser)).round_().square_()
    frobenius_B = square_BRR.sum((1, 2), dtype=torch.float64).clamp_(min=1.0).sqrt_()
    return frobenius_B.mul_(SHORT * coarser).sqrt_()[:, None, None]


def _coarse(x: Tensor) -> Tensor:
    """The numbers rounded to `COARSE_BITS` bits, by Veltkamp's two differences."""
    bits = round(-math.log2(torch.finfo(x.dtype).eps)) + 1
    shifted = x * float((1 << (bits - COARSE_BITS)) + 1)
    return shifted - (shifted - x)
