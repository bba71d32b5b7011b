"""What codecs of few bits share: padded rows, a Hadamard transform, draws, memory to work in.

Shapes:  P panels of R rows, each of N strands of M columns.
Errors:  BadMessage for bytes of another key.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import hashlib

import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage

PERIOD = 4093  # draws, used again and again: a prime, so that columns meet them all
DRAW_BYTES = 2  # with one the mean error of a dither would be up to 1/512 of a step
KEY_CHECK_BYTES = 4
PEAK_MAX = 2.0**110  # of a sum over strands: scales and what is decoded stay finite in float32
TINY = 2.0**-60  # what has no greater sums is lifted first: reciprocals stay finite
LIFT = 2.0**80


class KeyDraw:
    """All that is drawn from a key: signs of strands, draws of 16 bits, and the key's check."""

    def __init__(self, key: bytes, strands: int) -> None:
        parts = [KEY_CHECK_BYTES, strands, PERIOD * DRAW_BYTES]
        drawn = torch.frombuffer(
            bytearray(hashlib.shake_128(key).digest(sum(parts))), dtype=torch.uint8
        )
        self.check, signs, draws = torch.split(drawn, parts)
        self.signs_N1 = (signs % 2).to(torch.float32).mul_(2).sub_(1).unsqueeze(1)
        low, high = draws.view(PERIOD, DRAW_BYTES).to(torch.int32).unbind(1)
        self.draws = low + high * 256

    def expect_check(self, codec: str, encoded: Tensor) -> None:
        """Raise BadMessage unless encoded bytes begin with this key's check."""
        if not torch.equal(encoded[:KEY_CHECK_BYTES], self.check):
            raise BadMessage(f"{codec} bytes of another key")


class PaddedRows:
    """A tensor in rows of one width, the last one padded with zeros."""

    def __init__(self, values: int, width: int) -> None:
        self.width, self.count = width, -(-values // width)
        self._values = values
        self._padded = self.count * width != values

    def of(self, values: Tensor) -> Tensor:
        """The values in rows; a copy if they are not contiguous, or padded."""
        if not self._padded:
            return values.reshape(self.count, self.width)
        flat = values.new_zeros(self.count * self.width)
        flat[: self._values].copy_(values.reshape(-1))
        return flat.view(self.count, self.width)

    def to_fill(self, values: Tensor) -> Tensor:
        """Rows to decode into: the memory of `values` if it has room."""
        shape = self.count, self.width
        return values.new_empty(shape) if self._padded else values.view(shape)

    def fill(self, values: Tensor, rows: Tensor) -> Tensor:
        """The values of decoded rows."""
        if self._padded:
            values.copy_(rows.view(-1)[: self._values].view(values.shape))
        return values


class Scratch:
    """Memory to work in, used again for one part of a tensor after another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[str, Tensor] = {}

    def floats(self, name: str, like: Tensor) -> Tensor:
        """A float32 tensor of a shape, that is to be used under one name."""
        return self._take(name, like, torch.float32)

    def line(self, name: str, length: int) -> Tensor:
        """A float32 tensor of one dimension."""
        return self.floats(name, torch.empty(length, device="meta"))

    def whole(self, name: str, like: Tensor) -> Tensor:
        """An int32 tensor of a shape."""
        return self._take(name, like, torch.int32)

    def bytes(self, name: str, like: Tensor) -> Tensor:
        """Bytes of a shape."""
        return self._take(name, like, torch.uint8)

    def _take(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        made = self._made.get(name)
        if made is None or made.numel() < like.numel():
            made = self._made[name] = torch.empty(like.numel(), dtype=dtype, device=self._device)
        return made[: like.numel()].view(like.shape)


def fit(values: Tensor, dtype: torch.dtype) -> None:
    """Limit decoded values to the greatest of a float16, past which an error may have led."""
    if dtype == torch.float16:
        most = torch.finfo(dtype).max
        values.clamp_(-most, most)


def mixed(x_PRNM: Tensor, spare_PRNM: Tensor) -> tuple[Tensor, Tensor]:
    """The Hadamard transform of strands times the root of their number, and memory of that size.

    Done twice it multiplies by their number. It adds and subtracts whole strands in one order
    everywhere, and overwrites what it is given.
    """
    panels, rows, strands, columns = x_PRNM.shape
    apart = strands // 2
    while apart:
        shape = panels, rows, strands // (2 * apart), 2, apart, columns
        given, made = x_PRNM.view(shape), spare_PRNM.view(shape)
        torch.add(given[:, :, :, 0], given[:, :, :, 1], out=made[:, :, :, 0])
        torch.sub(given[:, :, :, 0], given[:, :, :, 1], out=made[:, :, :, 1])
        x_PRNM, spare_PRNM = spare_PRNM, x_PRNM
        apart //= 2
    return x_PRNM, spare_PRNM
