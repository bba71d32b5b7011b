"""Matrices made orthogonal by products in float32, with the same bits on every processor.

Processors add the products of a matrix product up in different orders, and round differently. Here
the factors are whole numbers, and the sums stay so small that float32 has them exactly, in whatever
order, fused or not. What is rounded is rounded element by element, as IEEE 754 says.

**When a product is exact.** Each row of the first factor and each column of the second has a norm
below 2**12. Then every part of every sum of products is below 2**24 (Cauchy-Schwarz, for whichever
terms), and float32 has all whole numbers up to there. In the first product this is so by
construction; in later ones it is measured, in float32: a sum of squares never falls while it is
added up, so one that ends below 2**24 was exact all the way, and one that should not be below
2**24 is not. A matrix with a longer row or column in any product keeps its direction and is only
scaled: it takes one that was made for it.

**Why 12 bits are enough.** What becomes orthogonal, X, is kept in float32, and only factors are
rounded. In X <- a X + B X with B = b A + c A A and A = X X^T, small singular values live in the
first term, which no product touches; what rounding does to B turns singular vectors by a hundredth.
Others compute this in bfloat16, and round X itself to 8 bits.

**No TF32.** A processor may round the factors of a float32 product to 11 bits or to 8 if somebody
lets it: by torch's settings, by autocast, by a library's own ways. The products are float64 then,
which gives the same bits. torch is asked; and for the rest the norms of rows come twice, from
squares added up and from the product of a matrix with its transpose, and have to be equal.

Units:   whole numbers in factors; X has none.
Shapes:  B matrices of R rows and C columns, R <= C, 2**19 elements each at most.
Errors:  none.
Source:  Keller Jordan et al., Muon (2024).
"""
# ruff: noqa: N802, N803, N806  shapes are written at the end of names

import struct

import torch
from torch import Tensor

from p2pswarm.compute.device_dtypes import CPU

LIMIT = 1 << 24  # float32 has every whole number up to here
FIRST, THIRD, FIFTH = 3.4445, -4.7750, 2.0315  # of the odd polynomial that each step applies
STEPS = 4
REACH = 1.2025  # the most that the polynomial makes of 0..1.25
STEEPEST = 2.806  # the largest |THIRD a + FIFTH a a| for a in 0..REACH**2
ROOM = 1.1  # for what rounding adds to norms: 1 % at most in all that was tried (bench/LOG.md)
X_UNITS, A_UNITS, B_UNITS = (int(4096 / (n * ROOM)) for n in (REACH, REACH**2, STEEPEST))
PEAK = 65_536.0  # of a matrix that is measured: then float64 adds up its squares exactly
START = 3_600.0  # rounding adds sqrt(2**19) / 2 = 362 to a norm at most: it stays below 4,096
SHORT = 1.02  # a measured norm falls short of the true one by 1.1 % at most
TINY = 1e-30  # a matrix whose elements are all smaller becomes zero
HALVED_ROWS = 256  # so many rows are worth computing half of a symmetric product


def orthogonal(x_BRC: Tensor) -> Tensor:
    """Matrices with the same singular vectors, and singular values near 1 unless they were tiny.

    float32, on the device of `x_BRC` or on the host, as `place_of` says; zeros stay zeros.
    """
    x_BRC = _peaked(x_BRC.to(place_of(x_BRC.device)))
    tall = x_BRC.shape[1] > x_BRC.shape[2]
    x_BRC = x_BRC.mT if tall else x_BRC
    dtypes = [torch.float32] if float32_is_exact(x_BRC.device) else []
    for dtype in (*dtypes, torch.float64):
        products = Products(x_BRC, dtype)
        found_BRC = _iterated(x_BRC, products)
        if products.agree:
            break
    return found_BRC.mT if tall else found_BRC


def place_of(device: torch.device) -> torch.device:
    """Where the matrices of a device are made orthogonal.

    CPUs and CUDA devices multiply float32 as IEEE 754 says. Of others nobody has measured it, and
    mps has no float64 to begin with.
    """
    return device if device.type in {"cpu", "cuda"} else CPU


def float32_is_exact(device: torch.device) -> bool:
    """Whether torch leaves the factors of a float32 product as they are."""
    try:
        whole = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set in torch's older way and in its newer one, which differ
        return False
    return whole and not torch.is_autocast_enabled(device.type)


class Products:
    """Products of whole numbers that stand in float32, and whether they can be believed."""

    def __init__(self, like_BRC: Tensor, dtype: torch.dtype, limit: int = LIMIT) -> None:
        """`limit`: of the sum of squares of a row or column of a factor."""
        self._dtype, self._limit = dtype, limit
        self._longest_B = like_BRC.new_zeros(like_BRC.shape[0], dtype=torch.float32)
        self._agree = torch.ones((), dtype=torch.bool, device=like_BRC.device)

    @property
    def fit_B(self) -> Tensor:
        """Whether all factors of a matrix were as short as exact products need them."""
        return self._longest_B < self._limit

    @property
    def agree(self) -> bool:
        """Whether the norm of each row came out of its product; waits for the device."""
        return bool(self._agree)

    def gram(self, x_BRC: Tensor) -> Tensor:
        """X times its transpose; the columns of X are checked too, since B X comes next."""
        square_BRC = x_BRC * x_BRC
        rows_BR = square_BRC.sum(2)
        self._note(rows_BR)
        self._note(square_BRC.sum(1))
        a_BRR = self._symmetric(x_BRC, x_BRC.mT)
        self._agree &= (rows_BR == a_BRR.diagonal(dim1=1, dim2=2)).all()
        return a_BRR

    def square(self, a_BRR: Tensor) -> Tensor:
        """A symmetric matrix times itself."""
        found_BRR = self._symmetric(a_BRR, a_BRR)
        self._note(found_BRR.diagonal(dim1=1, dim2=2))
        return found_BRR

    def times(self, b_BRR: Tensor, x_BRC: Tensor) -> Tensor:
        """B times an X that `gram` has seen."""
        self._note((b_BRR * b_BRR).sum(2))
        return self._product(b_BRR, x_BRC)

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
        return torch.bmm(x.to(self._dtype), y.to(self._dtype)).to(torch.float32)


def _iterated(x_BRC: Tensor, products: Products) -> Tensor:
    """Newton-Schulz steps from elements of at most `PEAK`."""
    scale_B11 = _scale(x_BRC)
    factor_BRC = (x_BRC * scale_B11).round_()
    a_BRR = products.gram(factor_BRC)
    norm_B11 = _norm_bound(a_BRR)
    unit_B11 = norm_B11.reciprocal().to(torch.float32)
    x_BRC = begun_BRC = x_BRC * (scale_B11 * unit_B11)
    for step in range(STEPS):
        if step:
            factor_BRC = (x_BRC * X_UNITS).round_()
            a_BRR = products.gram(factor_BRC)
            unit_B11 = torch.full_like(unit_B11, 1.0 / X_UNITS)
        a_BRR.mul_(unit_B11 * unit_B11)
        square_BRR = products.square((a_BRR * A_UNITS).round_())
        square_BRR.mul_(_single(FIFTH * B_UNITS / A_UNITS**2))
        b_BRR = square_BRR.add_(a_BRR.mul_(_single(THIRD * B_UNITS))).round_()
        moved_BRC = products.times(b_BRR, factor_BRC).mul_(unit_B11 * _single(1.0 / B_UNITS))
        x_BRC = (x_BRC * _single(FIRST)).add_(moved_BRC)
    return torch.where(products.fit_B[:, None, None], x_BRC, begun_BRC)


def _peaked(x_BRC: Tensor) -> Tensor:
    """Each matrix times what makes its largest element `PEAK`, in float32."""
    peak_B11 = x_BRC.abs().amax((1, 2), keepdim=True)
    shift_B11 = torch.where(peak_B11 > TINY, torch.full_like(peak_B11, PEAK).div_(peak_B11), 0.0)
    return (x_BRC * shift_B11).to(torch.float32)


def _scale(x_BRC: Tensor) -> Tensor:
    """What brings the longest row or column of each matrix to the norm `START`, from exact sums."""
    square_BRC = x_BRC.round().square_()  # rounded to float32, and whole numbers all the same
    sums = (square_BRC.sum(way, dtype=torch.float64).amax(1) for way in (1, 2))
    norm_B = torch.maximum(*sums).clamp_(min=1.0).sqrt_().mul_(SHORT)
    return torch.full_like(norm_B, START).div_(norm_B).to(torch.float32)[:, None, None]


def _norm_bound(a_BRR: Tensor) -> Tensor:
    """A bound of the largest singular value of X, from A = X X^T.

    It is the fourth root of the sum of all fourth powers of singular values, whose second root is
    the Frobenius norm of A.
    """
    square_BRR = (a_BRR * (PEAK / LIMIT)).round_().square_()
    frobenius_B = square_BRR.sum((1, 2), dtype=torch.float64).clamp_(min=1.0).sqrt_()
    return frobenius_B.mul_(SHORT * LIMIT / PEAK).sqrt_()[:, None, None]


def _single(value: float) -> float:
    """The nearest float32: so a processor multiplies by that, whatever it would have made of it."""
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found
