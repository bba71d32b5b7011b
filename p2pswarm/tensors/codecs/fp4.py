"""FP4, three codecs of 4-bit floats in blocks with a scale, in the layouts of GPUs that compute so.

`nvfp4` has blocks of 16 along a row, a scale of 8 bits (E4M3) for each, and one of 32 bits for the
tensor. A block is scaled so that its greatest value is 6 or 4, whichever leaves the smaller squared
error: between 4 and 6 there is nothing. It rounds to nearest, so it is for activations.

`nvfp4-eden` is the same format for gradients. A row of 32 values gets signs from the key and a
Hadamard transform, and is rounded to nearest. Then its two scales are multiplied so that the error
is at a right angle to the row, and rounded by chance. Over keys the mean of Gaussian values is
right; that of values beside one which is a hundred times greater is not (docs/codecs.md).

`mxfp4` has blocks of 32 and a power of two (E8M0) as scale, as the Open Compute Project's
"OCP Microscaling Formats (MX) Specification v1.0" says. It rounds to nearest.

Sums are made by halving, and all else element by element: every processor makes the same bytes.

Wire: of `nvfp4-eden` 4 bytes of the key's stream; of both NVFP4 the tensor's scale as a float32,
negative if values were lifted by `LIFT`. Then a byte of scale for each block, and the codes, two to
a byte, the first in the low half.

Shapes:  blocks of N values, B of them at once; H blocks in a row of a Hadamard transform.
Errors:  Unencodable for NaN, infinities and what is past `PEAK_MAX`; BadMessage for a peer's bytes.
Source:  "Four Over Six", arXiv 2512.02010; MS-EDEN of "Quartet II", arXiv 2601.22813.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs.base import (
    DTYPES,
    FLOATS,
    TORCH,
    Decoder,
    TensorUse,
    Unencodable,
    bytes_of,
    expect_bytes,
)
from p2pswarm.tensors.codecs.codec import Codec, CodecKind, KeyedCodec
from p2pswarm.tensors.codecs.hadamard import (
    KEY_CHECK_BYTES,
    LIFT,
    PEAK_MAX,
    PERIOD,
    TINY,
    KeyDraw,
    PaddedRows,
    Scratch,
    fit,
    mixed,
)
from p2pswarm.tensors.codecs.meta import TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

NV_BLOCK, MX_BLOCK, EDEN_ROW = 16, 32, 32
CHUNK_VALUES = 1 << 17  # what is worked on stays in a core's second cache
SCALE_BYTES = 4  # of a tensor
TENSOR_SCALE_MIN = 2.0**-80
E2M1_MAX = 6.0
E4M3_CODE_MAX = 0x7E  # 448; 0x7F is no number, and with a sign no scale
E8M0_CODE_MAX = 252  # of a finite float32's block: with more, 6 would be an infinity
E8M0_BELOW = 2  # a block's greatest value is 4 to 8 times its scale, and 6 the most
NEAREST_TOP = 256.0  # the greatest block's scale; 3/2 of it, for a top of 4, fits E4M3 too
EDEN_TOP = 255.99  # so much, and not 448, leaves room for the correction
EDEN_AIM = 17 / 16 * 0.93  # a little of a block's top is cut off: the rest is finer
EXPONENT = 0xFF << 23  # of a float32's bits


@dataclass(frozen=True, slots=True)
class _Form:
    """A float of a few bits: a sign or none, an exponent, and `fraction` bits."""

    fraction: int
    least: int
    """The exponent of the smallest value that has all bits of fraction."""
    most: float

    @property
    def lift(self) -> int:
        """What to add to a power of two's bits, so that adding and subtracting it rounds.

        The sum is 1.5 * 2^23 units of the fraction's last bit: its last bit is one unit.
        """
        return ((23 - self.fraction) << 23) + (1 << 22)

    @property
    def shift(self) -> int:
        """To the right, of a float32's bits, which leaves a code less a constant."""
        return 23 - self.fraction


E2M1 = _Form(1, 0, E2M1_MAX)
E4M3 = _Form(3, -6, 448.0)
E4M3_VALUES = torch.tensor(
    [
        math.ldexp(code % 8 + 8 * bool(code // 8), max(code // 8, 1) - 10)
        for code in range(E4M3_CODE_MAX + 1)
    ]
)
E8M0_VALUES = torch.tensor([math.ldexp(1.0, code - 127) for code in range(255)])


class NvFp4(Codec):
    """The codec nvfp4: each block's top is 6 or 4, and values are rounded to nearest."""

    name = "nvfp4"
    code = 12
    kind = CodecKind.PLAIN
    uses = TensorUse.ACTIVATION
    dtypes = FLOATS
    heavy = True
    greatest = PEAK_MAX

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless there is half a byte per value and a scale per block."""
        expect_bytes(self.name, encoded_bytes, _nearest_blocks(layout).encoded_bytes)

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """Quantise on the tensor's device, then copy the smaller result to the CPU."""
        values = tensor.detach()
        blocks = _nearest_blocks(TensorLayout(DTYPES[values.dtype], tuple(values.shape)))
        encoded = pool.beside(values, (blocks.encoded_bytes,), torch.uint8)
        x_BN = blocks.padded.of(values)
        scale, lift = _tensor_scale(self.name, _peak(x_BN), NEAREST_TOP * E2M1_MAX)
        _write_scale(encoded[:SCALE_BYTES], scale, lift)
        scales_B, codes_B8 = blocks.scales(encoded), blocks.codes(encoded)
        scratch = Scratch(values.device)
        for some in blocks.chunks(at_once=pool.streams.device.holds(values)):
            y_NB = _columns(x_BN[some], scratch)
            if lift != 1.0:
                y_NB.mul_(lift)
            kept_B, code_NB = _four_six_codes(y_NB, scale, scratch)
            scales_B[some].copy_(kept_B)
            _pack(code_NB, y_NB, codes_B8[some], scratch)
        return bytes_of(pool.on_host(encoded))

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """Memory for scales and codes, which `finish` multiplies on the device."""
        encoded = pool.way((encoded_bytes,), torch.uint8)

        def finish() -> Tensor:
            blocks = _nearest_blocks(layout)
            scale, lift = _read_scale(self.name, encoded[:SCALE_BYTES])
            there = pool.on_device(encoded)
            scales_B, codes_B8 = blocks.scales(there), blocks.codes(there)
            _expect_scales(self.name, scales_B, E4M3_CODE_MAX)
            values = pool.home(layout.shape, TORCH[layout.dtype])
            x_BN = blocks.padded.to_fill(values)
            scratch = Scratch(there.device)
            for some in blocks.chunks(at_once=pool.apart):
                y_NB = _unpack(codes_B8[some], scratch)
                y_NB.mul_(_lookup(E4M3_VALUES, scales_B[some]).mul_(scale / 2))
                if lift != 1.0:
                    y_NB.mul_(1 / lift)
                _write(y_NB, x_BN[some])
            return blocks.padded.fill(values, x_BN)

        return Decoder(bytes_of(encoded), finish)


class NvFp4Eden(KeyedCodec):
    """The codec nvfp4-eden: signs, a Hadamard transform, and scales that are rounded by chance."""

    name = "nvfp4-eden"
    code = 13
    uses = TensorUse.ACTIVATION | TensorUse.GRADIENT
    dtypes = FLOATS
    heavy = True
    greatest = PEAK_MAX

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless there is half a byte per value and a scale per block."""
        expect_bytes(self.name, encoded_bytes, _eden_blocks(layout).encoded_bytes)

    def encode_keyed(self, tensor: Tensor, key: bytes, pool: TensorPool) -> memoryview:
        """Quantise on the tensor's device, then copy the smaller result to the CPU."""
        values = tensor.detach()
        rows = _eden_blocks(TensorLayout(DTYPES[values.dtype], tuple(values.shape)))
        draw, scratch = _EdenDraw(key, values.device), Scratch(values.device)
        encoded = pool.beside(values, (rows.encoded_bytes,), torch.uint8)
        x_BN = rows.padded.of(values)
        kept = pool.beside(values, (x_BN.numel(),), torch.float32)
        chunks = list(rows.chunks(at_once=pool.streams.device.holds(values)))
        for some in chunks:
            y_NB = draw.rotation(_columns(x_BN[some], scratch), scratch)
            _part(kept, some).view(y_NB.shape).copy_(y_NB)
        scale, lift = _tensor_scale(self.name, _peak(kept), EDEN_TOP * E2M1_MAX / EDEN_AIM)
        encoded[:KEY_CHECK_BYTES].copy_(draw.check)
        _write_scale(encoded[KEY_CHECK_BYTES : rows.head_bytes], scale, lift)
        scales_BH, codes_BH8 = rows.scales(encoded), rows.codes(encoded)
        for some in chunks:
            y_HNB = _part(kept, some).view(EDEN_ROW // NV_BLOCK, NV_BLOCK, -1)
            if lift != 1.0:
                y_HNB.mul_(lift)
            kept_HB, code_HNB = _eden_codes(y_HNB, scale, draw.chance(some), scratch)
            scales_BH[some].copy_(kept_HB.t())
            for half in range(EDEN_ROW // NV_BLOCK):
                _pack(code_HNB[half], y_HNB[half], codes_BH8[some, half], scratch)
        return bytes_of(pool.on_host(encoded))

    def keyed_decoder(
        self, layout: TensorLayout, encoded_bytes: int, key: bytes, pool: TensorPool
    ) -> Decoder:
        """Memory for scales and codes, which `finish` restores on the device."""
        encoded = pool.way((encoded_bytes,), torch.uint8)

        def finish() -> Tensor:
            rows = _eden_blocks(layout)
            draw = _EdenDraw(key, pool.device)
            draw.expect_check(self.name, encoded)
            scale, lift = _read_scale(self.name, encoded[KEY_CHECK_BYTES : rows.head_bytes])
            there = pool.on_device(encoded)
            scales_BH, codes_BH8 = rows.scales(there), rows.codes(there)
            _expect_scales(self.name, scales_BH, E4M3_CODE_MAX)
            values = pool.home(layout.shape, TORCH[layout.dtype])
            x_BN = rows.padded.to_fill(values)
            scratch = Scratch(there.device)
            for some in rows.chunks(at_once=pool.apart):
                y_NB = _unpack(codes_BH8[some].flatten(1), scratch)
                steps_HB = _lookup(E4M3_VALUES, scales_BH[some].t())
                steps_HB.mul_(scale / (2 * EDEN_ROW))
                y_NB.view(2, NV_BLOCK, -1).mul_(steps_HB.unsqueeze(1))
                y_NB = draw.inverse(y_NB, scratch)
                if lift != 1.0:
                    y_NB.mul_(1 / lift)
                _write(y_NB, x_BN[some])
            return rows.padded.fill(values, x_BN)

        return Decoder(bytes_of(encoded), finish)


class MxFp4(Codec):
    """The codec mxfp4: scales are powers of two, and values are rounded to nearest."""

    name = "mxfp4"
    code = 14
    kind = CodecKind.PLAIN
    uses = TensorUse.ACTIVATION
    dtypes = FLOATS
    heavy = True

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless there is half a byte per value and a scale per block."""
        expect_bytes(self.name, encoded_bytes, _mx_blocks(layout).encoded_bytes)

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """Quantise on the tensor's device, then copy the smaller result to the CPU."""
        values = tensor.detach()
        blocks = _mx_blocks(TensorLayout(DTYPES[values.dtype], tuple(values.shape)))
        encoded = pool.beside(values, (blocks.encoded_bytes,), torch.uint8)
        x_BN = blocks.padded.of(values)
        scales_B, codes_BC = blocks.scales(encoded), blocks.codes(encoded)
        scratch = Scratch(values.device)
        for some in blocks.chunks(at_once=pool.streams.device.holds(values)):
            y_NB = _columns(x_BN[some], scratch)
            size_NB = torch.abs(y_NB, out=scratch.floats("size", y_NB))
            peaks_B = size_NB.amax(0)
            if not bool(peaks_B.isfinite().all()):
                raise Unencodable(
                    "mxfp4 cannot hold NaN, infinities or values past float32: send them raw"
                )
            kept_B = peaks_B.view(torch.int32).bitwise_right_shift(23)
            kept_B.sub_(E8M0_BELOW).clamp_(min=0)
            scales_B[some].copy_(kept_B)
            size_NB.mul_((2 * 127 - kept_B).bitwise_left_shift_(23).view(torch.float32))
            _pack(_nearest(size_NB, E2M1, scratch)[0], y_NB, codes_BC[some], scratch)
        return bytes_of(pool.on_host(encoded))

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """Memory for scales and codes, which `finish` multiplies on the device."""
        encoded = pool.way((encoded_bytes,), torch.uint8)

        def finish() -> Tensor:
            blocks, there = _mx_blocks(layout), pool.on_device(encoded)
            scales_B, codes_BC = blocks.scales(there), blocks.codes(there)
            _expect_scales(self.name, scales_B, E8M0_CODE_MAX)
            values = pool.home(layout.shape, TORCH[layout.dtype])
            x_BN = blocks.padded.to_fill(values)
            scratch = Scratch(there.device)
            for some in blocks.chunks(at_once=pool.apart):
                y_NB = _unpack(codes_BC[some], scratch).mul_(0.5)  # exact, and so is what follows
                _write(y_NB.mul_(_lookup(E8M0_VALUES, scales_B[some])), x_BN[some])
            return blocks.padded.fill(values, x_BN)

        return Decoder(bytes_of(encoded), finish)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A tensor in rows of one block or of more, the last one padded with zeros, and its bytes."""

    values: int
    row: int
    """Values of a row."""
    block: int
    head_bytes: int

    @property
    def padded(self) -> PaddedRows:
        """The rows, of whole blocks."""
        return PaddedRows(self.values, self.row)

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.padded.count

    @property
    def encoded_bytes(self) -> int:
        """The size of the whole tensor, encoded."""
        return self.head_bytes + self.rows * (self.row // self.block + self.row // 2)

    def scales(self, encoded: Tensor) -> Tensor:
        """A byte for each block: in a row for each row, if that has several."""
        end = self.head_bytes + self.rows * self.row // self.block
        scales = encoded[self.head_bytes : end]
        return scales if self.row == self.block else scales.view(self.rows, self.row // self.block)

    def codes(self, encoded: Tensor) -> Tensor:
        """The codes of each block."""
        codes = encoded[self.head_bytes + self.rows * self.row // self.block :]
        if self.row == self.block:
            return codes.view(self.rows, self.block // 2)
        return codes.view(self.rows, self.row // self.block, self.block // 2)

    def chunks(self, *, at_once: bool) -> Iterator[slice]:
        """Rows to work on: as many as stay in a cache, or all `at_once`."""
        each = max(1, self.rows if at_once else CHUNK_VALUES // self.row)
        for begin in range(0, self.rows, each):
            yield slice(begin, min(begin + each, self.rows))


def _nearest_blocks(layout: TensorLayout) -> _Blocks:
    return _Blocks(layout.values, NV_BLOCK, NV_BLOCK, SCALE_BYTES)


def _eden_blocks(layout: TensorLayout) -> _Blocks:
    return _Blocks(layout.values, EDEN_ROW, NV_BLOCK, KEY_CHECK_BYTES + SCALE_BYTES)


def _mx_blocks(layout: TensorLayout) -> _Blocks:
    return _Blocks(layout.values, MX_BLOCK, MX_BLOCK, 0)


class _EdenDraw(KeyDraw):
    """The draws of a key as chances of scales."""

    def __init__(self, key: bytes, device: torch.device) -> None:
        super().__init__(key, EDEN_ROW)
        self._signs_N1 = self.signs_N1.to(device)
        # 16 bits of the 20 that E4M3 drops, and the middle of what is below them
        self._chances = (self.draws * 16 + 8).to(device)

    def rotation(self, x_NB: Tensor, scratch: Scratch) -> Tensor:
        """The signs and the transform; `x_NB` is overwritten."""
        return self._mixed(x_NB.mul_(self._signs_N1), scratch)

    def inverse(self, y_NB: Tensor, scratch: Scratch) -> Tensor:
        """The transform and the signs."""
        return self._mixed(y_NB, scratch).mul_(self._signs_N1)

    def chance(self, rows: slice) -> Tensor:
        """A draw for each block of rows, by its number in the tensor."""
        halves = EDEN_ROW // NV_BLOCK
        numbers = torch.arange(rows.start * halves, rows.stop * halves, device=self._chances.device)
        return self._chances[numbers % PERIOD].view(-1, halves).t()

    def _mixed(self, x_NB: Tensor, scratch: Scratch) -> Tensor:
        spare_NB = scratch.floats("mixed", x_NB)
        mixed_PRNM, _ = mixed(x_NB[None, None], spare_NB[None, None])
        return mixed_PRNM[0, 0]


def _part(kept: Tensor, rows: slice) -> Tensor:
    return kept[rows.start * EDEN_ROW : rows.stop * EDEN_ROW]


def _peak(values: Tensor) -> float:
    """The greatest magnitude; NaN if there is one."""
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values)
    return float(torch.maximum(-low, high))


def _tensor_scale(name: str, peak: float, top: float) -> tuple[float, float]:
    """The scale with which a tensor's greatest value is `top`, and by what it is lifted before."""
    peak = _float32(peak)
    if not peak <= PEAK_MAX:  # neither is a NaN
        raise Unencodable(
            f"{name} cannot hold NaN, infinities or what is past {PEAK_MAX:g}: send them raw"
        )
    if not peak:
        return 1.0, 1.0
    lift = LIFT if peak < TINY else 1.0
    return _float32(peak * lift / top), lift


def _float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def _write_scale(place: Tensor, scale: float, lift: float) -> None:
    shown = torch.tensor([scale if lift == 1.0 else -scale], dtype=torch.float32)
    place.copy_(shown.view(torch.uint8))


def _read_scale(name: str, place: Tensor) -> tuple[float, float]:
    signed = float(place.clone().view(torch.float32))
    if not TENSOR_SCALE_MIN <= abs(signed) <= PEAK_MAX:  # neither is a NaN
        raise BadMessage(f"a {name} scale of a tensor that no encoder makes")
    return abs(signed), LIFT if signed < 0 else 1.0


def _expect_scales(name: str, scales: Tensor, most: int) -> None:
    if scales.numel() and int(scales.amax()) > most:
        raise BadMessage(f"a {name} scale that no encoder makes")


def _columns(x_BN: Tensor, scratch: Scratch) -> Tensor:
    """Blocks as columns, in float32: so each step works on long rows."""
    exact = x_BN
    if x_BN.dtype != torch.float32:
        exact = scratch.floats("exact", x_BN).copy_(x_BN)
    return scratch.floats("columns", x_BN.t()).copy_(exact.t())


def _write(y_NB: Tensor, x_BN: Tensor) -> None:
    """Write columns into rows."""
    fit(y_NB, x_BN.dtype)
    x_BN.copy_(y_NB.t())


def _lookup(table: Tensor, codes: Tensor) -> Tensor:
    return table.to(codes.device)[codes.to(torch.int64)]


def _nearest(size: Tensor, form: _Form, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The codes of magnitudes, rounded to nearest and ties to even, and what the codes stand for.

    What is past the form's greatest value becomes that.
    """
    rounded = torch.clamp(size, max=form.most, out=scratch.floats("rounded", size))
    power = torch.clamp(rounded, min=2.0**form.least, out=scratch.floats("power", size))
    bits = power.view(torch.int32).bitwise_and_(EXPONENT).add_(form.lift)
    rounded.add_(power)
    code = torch.sub(rounded.view(torch.int32), bits, out=scratch.whole("code", size))
    rounded.sub_(power)
    first = (form.least + 127 << form.fraction) + (form.lift >> form.shift)
    code.add_(bits.bitwise_right_shift_(form.shift)).sub_(first)
    return code, rounded


def _by_chance(scales: Tensor, chances: Tensor) -> Tensor:
    """The E4M3 codes of positive values, rounded up with a chance of their distance from below."""
    least = 2.0**E4M3.least
    small = scales < least  # the same steps as above it, if it is added
    bits = torch.where(small, scales + least, scales).view(torch.int32)
    code = (bits + chances).bitwise_right_shift_(E4M3.shift)
    code.sub_((E4M3.least + 126 << E4M3.fraction) + small.to(torch.int32) * 8)
    return code.clamp_(max=E4M3_CODE_MAX)


def _sum(terms: Tensor) -> Tensor:
    """The sum over the last but one dimension, by halving it: in one order everywhere.

    `terms` are overwritten.
    """
    while (half := terms.shape[-2] // 2) > 0:
        terms = terms[..., :half, :].add_(terms[..., half:, :])
    return terms.squeeze(-2)


def _four_six_codes(y_NB: Tensor, scale: float, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The scale's code of each block, and the values' codes: with the top 6 or 4."""
    size_NB = torch.abs(y_NB, out=scratch.floats("size", y_NB))
    wanted_B = size_NB.amax(0).mul_(_float32(1 / (E2M1_MAX * scale)))
    found = []
    for more in (1.0, 1.5):
        kept_B = _nearest(wanted_B * more, E4M3, scratch)[0].clamp_(min=1).clone()
        step_B = _lookup(E4M3_VALUES, kept_B)
        share_NB = scratch.floats("share", y_NB)
        torch.mul(size_NB, (step_B * scale).reciprocal_(), out=share_NB)
        code_NB, rounded_NB = _nearest(share_NB, E2M1, scratch)
        error_NB = share_NB.sub_(rounded_NB)
        error_B = _sum(error_NB.mul_(error_NB)).mul(step_B).mul_(step_B)
        found.append((kept_B, scratch.bytes(f"top {more}", code_NB).copy_(code_NB), error_B))
    (kept_6, code_6, error_6), (kept_4, code_4, error_4) = found
    four = error_4 < error_6
    # a choice by arithmetic modulo 256: `where` is slow with a mask of blocks
    code_NB = code_4.sub_(code_6).mul_(four.view(torch.uint8)).add_(code_6)
    return torch.where(four, kept_4, kept_6), code_NB


def _eden_codes(
    y_HNB: Tensor, scale: float, chances_HB: Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """The scale's code of each block, and the values' codes, of rows of several blocks."""
    size_HNB = torch.abs(y_HNB, out=scratch.floats("size", y_HNB))
    wanted_HB = size_HNB.amax(1).mul_(_float32(EDEN_AIM / (E2M1_MAX * scale)))
    kept_HB = _nearest(wanted_HB, E4M3, scratch)[0].clamp_(min=1)
    step_HB = _lookup(E4M3_VALUES, kept_HB)
    size_HNB.mul_((step_HB * scale).reciprocal_().unsqueeze(1))
    code_HNB, rounded_HNB = _nearest(size_HNB, E2M1, scratch)
    rounded_HNB.mul_(size_HNB)
    square_HB = step_HB * step_HB
    given_B = _sum(_sum(rounded_HNB).mul_(square_HB))
    whole_B = _sum(_sum(size_HNB.mul_(size_HNB)).mul_(square_HB))
    more_B = torch.where(given_B > 0, whole_B / given_B, 1.0)
    return _by_chance(step_HB * more_B, chances_HB), code_HNB


def _pack(code_NB: Tensor, y_NB: Tensor, packed_BC: Tensor, scratch: Scratch) -> None:
    """Write codes and signs, two to a byte."""
    negative_NB = scratch.bytes("negative", y_NB)
    torch.lt(y_NB, 0, out=negative_NB.view(torch.bool))
    whole_NB = scratch.bytes("signed", y_NB).copy_(code_NB).add_(negative_NB, alpha=8)
    packed_BC.copy_(whole_NB[0::2].add_(whole_NB[1::2], alpha=16).t())


def _unpack(packed_BC: Tensor, scratch: Scratch) -> Tensor:
    """Twice the values of codes, as columns."""
    packed_CB = packed_BC.t().contiguous()
    code_C2B = torch.stack([packed_CB.bitwise_and(15), packed_CB.bitwise_right_shift(4)], 1)
    code_NB = code_C2B.flatten(0, 1)
    size_NB = code_NB.bitwise_and(7)
    twice_NB = size_NB + size_NB.clamp(min=4)  # 0 to 4, then in twos
    twice_NB.add_(size_NB.clamp_(min=6), alpha=2).sub_(16)  # and from 8 to 12
    signed_NB = twice_NB.view(torch.int8)
    signed_NB.mul_(code_NB.bitwise_right_shift_(3).view(torch.int8).mul_(-2).add_(1))
    return scratch.floats("columns", signed_NB).copy_(signed_NB)
