"""Dither, codecs of 2 to 6 bits per value whose error is zero on average for every input.

A row is parted into n strands, and a Hadamard transform mixes each value of a strand with those at
its place in the others. So one large value spreads over its block of n, and a block's scale suits
all of it. The sender adds a dither, uniform between -1/2 and 1/2 of a step, before it rounds; the
receiver draws the same one from the key and subtracts it. So the error is uniform, with a mean
square of a twelfth of a squared step, and does not depend on the value.

Nothing but additions, single multiplications and whole numbers decide a code, each in one order:
every processor makes the same bytes.

Wire, for each panel of at most `PANEL_VALUES` values in whole rows: the code of the panel's
greatest scale (2 bytes, little-endian); a byte per block, the octave and eighth of its scale below
that, 0 for a block of zeros; the codes, in `PLANES`. Before the first
panel: 4 bytes of the key's stream, so that bytes of another key are an error and not noise.

Shapes:  P panels of R rows, each of N strands of M columns.
Errors:  Unencodable for NaN, infinities and sums past `PEAK_MAX`; BadMessage for a peer's bytes.
Source:  Schuchman, "Dither signals and their effect on quantization noise" (1964); for gradients:
         arXiv 1904.01197; with a Hadamard transform before: "Quartet II", arXiv 2601.22813.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

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
    is_line,
)
from p2pswarm.tensors.codecs.codec import KeyedCodec
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

PANEL_VALUES = 1 << 17  # what is worked on stays in a core's second cache
LOOSE_WIDTH = 1024  # of the rows that a tensor without rows of strands is parted into
TOP_BYTES = 2
CODE_SHIFT = 20  # of a float32's bits, the sign, the octave and three bits of fraction are above
TOP_MAX = 8 * (127 + 110)  # the code of a step of 2**110
TOP_MIN = 255 + 8  # what is 31 octaves below is still a normal float32
TOP_OF_ZEROS = 512  # of a panel of zeros; other panels' are 440 and more
BELOW_TOP = 255  # in eighths of an octave; what is smaller becomes zeros
LIFTED = 1 << 12  # added to the code of such a panel's greatest scale
NARROW_BITS, NARROW_STRANDS = 3, 32  # up to so few bits a byte of scale for 16 is too much
STRANDS = 16

PLANES = {6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}
"""The planes of a code, from its low bits up; a byte of a plane of b bits has 8 / b values."""


class Dither(KeyedCodec):
    """The codec of `bits` bits per value, and a byte for every 16 or 32 of them."""

    uses = TensorUse.ACTIVATION | TensorUse.GRADIENT
    dtypes = FLOATS
    heavy = True
    greatest = PEAK_MAX

    def __init__(self, bits: int, code: int) -> None:
        self.name = f"dither{bits}"
        self.code = code
        self.bits = bits
        self.strands = NARROW_STRANDS if bits <= NARROW_BITS else STRANDS
        levels = 2.0 ** (bits - 1) - 0.5
        # a little more: however the product is rounded, no value is past the last level
        self._step_per_peak = (1 + 2.0**-21) / levels
        self.kernels: ModuleType | None = None
        """`kernels/dither_kernels.py`, for tensors of the CPU, once it was tried out."""

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless there is a code per value and a scale per block."""
        expect_bytes(self.name, encoded_bytes, _Panels(layout, self).encoded_bytes)

    def encode_keyed(self, tensor: Tensor, key: bytes, pool: TensorPool) -> memoryview:
        """Quantise on the tensor's device, then copy the smaller result to the CPU."""
        values = tensor.detach()
        layout = TensorLayout(DTYPES[values.dtype], tuple(values.shape))
        panels, draw = _Panels(layout, self), _DitherDraw(key, self)
        encoded = pool.beside(values, (panels.encoded_bytes,), torch.uint8)
        encoded[:KEY_CHECK_BYTES].copy_(draw.check)
        rows = panels.rows.of(values)
        scratch = Scratch(values.device)
        quantise, at_once = self._quantise, pool.streams.device.holds(values)
        if self._has_kernels(values, panels):
            quantise, at_once = self._quantise_by_kernels, is_line(rows)
        for group in panels.groups(at_once=at_once):
            x_PRNM = rows[group.rows].view(group.shape)
            quantise(x_PRNM, group.of(encoded), group, draw, scratch)
        return bytes_of(pool.on_host(encoded))

    def keyed_decoder(
        self, layout: TensorLayout, encoded_bytes: int, key: bytes, pool: TensorPool
    ) -> Decoder:
        """Memory for the encoded bytes, which `finish` restores on the device."""
        encoded = pool.way((encoded_bytes,), torch.uint8)

        def finish() -> Tensor:
            panels, draw = _Panels(layout, self), _DitherDraw(key, self)
            draw.expect_check(self.name, encoded)
            there = pool.on_device(encoded)
            values = pool.home(layout.shape, TORCH[layout.dtype])
            rows = panels.rows.to_fill(values)
            scratch = Scratch(there.device)
            restore, at_once = self._restore, pool.apart
            if self._has_kernels(there, panels):
                restore, at_once = self._restore_by_kernels, is_line(rows)
            for group in panels.groups(at_once=at_once):
                x_PRNM = rows[group.rows].view(group.shape)
                restore(group.of(there), x_PRNM, group, draw, scratch)
            return panels.rows.fill(values, rows)

        return Decoder(bytes_of(encoded), finish)

    def _quantise(
        self,
        x_PRNM: Tensor,
        encoded: Tensor,
        group: "_PanelGroup",
        draw: "_DitherDraw",
        scratch: Scratch,
    ) -> None:
        """Encode panels of equal size, each into a row of `encoded`."""
        y_PRNM, spare_PRNM = scratch.floats("given", x_PRNM), scratch.floats("made", x_PRNM)
        exact = x_PRNM if x_PRNM.dtype == torch.float32 else spare_PRNM.copy_(x_PRNM)
        torch.mul(exact, draw.signs(x_PRNM), out=y_PRNM)
        y_PRNM, spare_PRNM = mixed(y_PRNM, spare_PRNM)
        steps_PRM = torch.abs(y_PRNM, out=spare_PRNM).amax(2)
        peaks_P = steps_PRM.amax((1, 2))
        peaks = peaks_P.tolist()
        if not all(peak <= PEAK_MAX for peak in peaks):  # neither is a NaN
            raise self._unencodable()
        lifted_P11 = (peaks_P < TINY).view(-1, 1, 1)
        if min(peaks) < TINY:
            lift_P11 = torch.where(lifted_P11, LIFT, 1.0)
            steps_PRM.mul_(lift_P11)
            y_PRNM.mul_(lift_P11.unsqueeze(3))
        codes_PRM = steps_PRM.mul_(self._step_per_peak).view(torch.int32)
        codes_PRM.add_((1 << CODE_SHIFT) - 1).bitwise_right_shift_(CODE_SHIFT)  # rounded up
        tops_P11 = codes_PRM.amax((1, 2), keepdim=True).clamp_(min=TOP_OF_ZEROS)
        least_P11 = tops_P11 - BELOW_TOP
        codes_PRM = torch.maximum(codes_PRM, least_P11)
        group.tops(encoded).copy_(_bytes_of_tops(tops_P11 + lifted_P11.to(torch.int32) * LIFTED))
        group.scales(encoded).copy_(codes_PRM - least_P11)
        per_step_PRM = _steps(codes_PRM).reciprocal_()
        y_PRNM.mul_(per_step_PRM.unsqueeze(2)).add_(draw.dither(x_PRNM, 0.0))
        codes_PRNM = scratch.bytes("codes", x_PRNM).copy_(
            y_PRNM
        )  # positive: to cut is to round down
        low = 0
        for bits, plane in group.planes(encoded):
            _pack(codes_PRNM, bits, low, plane)
            low += bits

    def _restore(
        self,
        encoded: Tensor,
        x_PRNM: Tensor,
        group: "_PanelGroup",
        draw: "_DitherDraw",
        scratch: Scratch,
    ) -> None:
        """Decode panels of equal size, each from a row of `encoded`."""
        marked_P11 = _tops_of_bytes(group.tops(encoded))
        lifted_P11, tops_P11 = marked_P11 >= LIFTED, marked_P11 % LIFTED
        wrong = (marked_P11 >= 2 * LIFTED) | (tops_P11 > TOP_MAX) | (tops_P11 < TOP_MIN)
        if bool(wrong.any()):
            raise self._no_such_scale()
        kept_PRM = group.scales(encoded)
        steps_PRM = _steps(kept_PRM.to(torch.int32).add_(tops_P11 - BELOW_TOP))
        steps_PRM.mul_(1 / self.strands)
        if not int(kept_PRM.amin()):
            steps_PRM.masked_fill_(kept_PRM == 0, 0.0)
        y_PRNM, spare_PRNM = scratch.floats("given", x_PRNM), scratch.floats("made", x_PRNM)
        codes_PRNM, low = scratch.bytes("codes", x_PRNM), 0
        for bits, plane in group.planes(encoded):
            _unpack(plane, bits, low, codes_PRNM)
            low += bits
        y_PRNM.copy_(codes_PRNM).sub_(draw.dither(codes_PRNM, 0.5)).mul_(steps_PRM.unsqueeze(2))
        y_PRNM, spare_PRNM = mixed(y_PRNM, spare_PRNM)
        if bool(lifted_P11.any()):
            y_PRNM.mul_(torch.where(lifted_P11, 1 / LIFT, 1.0).unsqueeze(3))
        if x_PRNM.dtype == torch.float32:
            torch.mul(y_PRNM, draw.signs(y_PRNM), out=x_PRNM)
        else:
            y_PRNM.mul_(draw.signs(y_PRNM))
            fit(y_PRNM, x_PRNM.dtype)
            x_PRNM.copy_(y_PRNM)

    def _has_kernels(self, there: Tensor, panels: "_Panels") -> bool:
        """Return whether compiled loops are to be used, which are slower for one column."""
        several = panels.rows.width > self.strands
        return self.kernels is not None and several and there.device.type == "cpu"

    def _unencodable(self) -> Unencodable:
        return Unencodable(
            f"{self.name} cannot hold NaN, infinities or sums past {PEAK_MAX:g}: send them raw"
        )

    def _no_such_scale(self) -> BadMessage:
        return BadMessage(f"a {self.name} scale that no encoder makes")

    def _quantise_by_kernels(
        self,
        x_PRNM: Tensor,
        encoded: Tensor,
        group: "_PanelGroup",
        draw: "_DitherDraw",
        scratch: Scratch,
    ) -> None:
        """As `_quantise`, by compiled loops."""
        kernels = self.kernels
        assert kernels is not None
        exact = x_PRNM
        if not is_line(x_PRNM):
            exact = scratch.floats("given", x_PRNM).copy_(x_PRNM)
        work = scratch.line("made", kernels.encoding_floats(*group.shape[1:]))
        held = kernels.encode(
            *(exact.view(-1).numpy(), *group.shape, self.bits),
            *(draw.signs(x_PRNM).view(-1).numpy(), draw.period(0.0, kernels.TILE).numpy()),
            *(self._step_per_peak, work.numpy(), encoded.view(-1).numpy()),
        )
        if not held:
            raise self._unencodable()

    def _restore_by_kernels(
        self,
        encoded: Tensor,
        x_PRNM: Tensor,
        group: "_PanelGroup",
        draw: "_DitherDraw",
        scratch: Scratch,
    ) -> None:
        """As `_restore`, by compiled loops."""
        kernels = self.kernels
        assert kernels is not None
        exact = x_PRNM if is_line(x_PRNM) else scratch.floats("made", x_PRNM)
        right = kernels.decode(
            *(encoded.view(-1).numpy(), *group.shape, self.bits),
            *(draw.signs(x_PRNM).view(-1).numpy(), draw.period(0.5, kernels.TILE).numpy()),
            exact.view(-1).numpy(),
        )
        if not right:
            raise self._no_such_scale()
        if exact is not x_PRNM:
            fit(exact, x_PRNM.dtype)
            x_PRNM.copy_(exact)


class _DitherDraw(KeyDraw):
    """The draws of a key as dither."""

    def __init__(self, key: bytes, codec: Dither) -> None:
        super().__init__(key, codec.strands)
        # in the middle of a 65536th of a step, and up by so much that codes begin at 0
        levels = 2.0 ** (codec.bits - 1) - 0.5
        self._dither = (self.draws.to(torch.float32) + 0.5) / 65536 + levels
        self._tables: dict[tuple[int, float], Tensor] = {}

    def signs(self, like: Tensor) -> Tensor:
        """A sign for each strand."""
        return self.signs_N1.to(like.device)

    def dither(self, like_PRNM: Tensor, less: float) -> Tensor:
        """A value's dither by its place in its panel, less a constant; the same in all panels."""
        shape = like_PRNM.shape[1:]
        return self._table(shape.numel(), less, like_PRNM.device).view(shape)

    def period(self, less: float, more: int) -> Tensor:
        """The dither of each place of a period and of the first `more` again, less a constant."""
        return self._table(PERIOD + more, less, self._dither.device)

    def _table(self, count: int, less: float, device: torch.device) -> Tensor:
        """The dither of the first `count` places, less a constant."""
        table = self._tables.get((count, less))
        if table is None:
            once = self._dither.to(device) - less
            table = once.repeat(-(-count // PERIOD))[:count]
            self._tables[count, less] = table
        return table


@dataclass(frozen=True, slots=True)
class _PanelGroup:
    """Panels of equal size that are encoded together."""

    rows: slice
    """Of the tensor."""
    begin: int
    """Where its first byte is."""
    shape: tuple[int, int, int, int]
    """Panels, rows of each, strands, columns of a strand."""
    bits: int

    @property
    def panel_bytes(self) -> int:
        """The size of one panel, encoded."""
        _, rows, strands, columns = self.shape
        return TOP_BYTES + rows * columns * (1 + strands * self.bits // 8)

    def of(self, encoded: Tensor) -> Tensor:
        """Its bytes, a row for each panel."""
        panels, size_bytes = self.shape[0], self.panel_bytes
        return encoded[self.begin : self.begin + panels * size_bytes].view(panels, size_bytes)

    def tops(self, encoded: Tensor) -> Tensor:
        """The bytes of the code of each panel's greatest scale."""
        return encoded[:, :TOP_BYTES]

    def scales(self, encoded: Tensor) -> Tensor:
        """The scale of each block, a byte."""
        panels, rows, _, columns = self.shape
        return encoded[:, TOP_BYTES : TOP_BYTES + rows * columns].view(panels, rows, columns)

    def planes(self, encoded: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The planes of the codes: the bits of each, and its bytes."""
        panels, rows, strands, columns = self.shape
        begin = TOP_BYTES + rows * columns
        for bits in PLANES[self.bits]:
            high = strands * bits // 8
            end = begin + rows * high * columns
            yield bits, encoded[:, begin:end].view(panels, rows, high, columns)
            begin = end


class _Panels:
    """A tensor as rows of whole strands, in panels of rows; padded where its width has no strands.

    A row is the tensor's last dimension.
    """

    def __init__(self, layout: TensorLayout, codec: Dither) -> None:
        self._codec = codec
        strands, values = codec.strands, layout.values
        width = layout.shape[-1] if layout.shape else 1
        if width % strands or not 0 < width <= PANEL_VALUES:
            width = min(LOOSE_WIDTH, max(1, -(-values // strands)) * strands)
        self.rows = PaddedRows(values, width)
        self._rows_each = max(1, PANEL_VALUES // width)

    @property
    def encoded_bytes(self) -> int:
        """The size of the whole tensor, encoded."""
        panels = -(-self.rows.count // self._rows_each)
        blocks = self.rows.count * (self.rows.width // self._codec.strands)
        codes = self.rows.count * self.rows.width * self._codec.bits // 8
        return KEY_CHECK_BYTES + panels * TOP_BYTES + blocks + codes

    def groups(self, *, at_once: bool) -> Iterator[_PanelGroup]:
        """Panels to work on: one after another, or all whole ones `at_once`; a short one last."""
        each, columns = self._rows_each, self.rows.width // self._codec.strands
        whole = self.rows.count // each
        sizes = [(whole, each)] if at_once and whole else [(1, each)] * whole
        if self.rows.count % each:
            sizes.append((1, self.rows.count % each))
        row, byte = 0, KEY_CHECK_BYTES
        for panels, rows in sizes:
            shape = panels, rows, self._codec.strands, columns
            group = _PanelGroup(slice(row, row + panels * rows), byte, shape, self._codec.bits)
            yield group
            row += panels * rows
            byte += panels * group.panel_bytes


def _steps(codes: Tensor) -> Tensor:
    """The scales that codes stand for: the upper bits of a float32."""
    return codes.bitwise_left_shift(CODE_SHIFT).view(torch.float32)


def _bytes_of_tops(tops_P11: Tensor) -> Tensor:
    tops_P1 = tops_P11.view(-1, 1)
    return torch.cat([tops_P1 % 256, tops_P1 // 256], dim=1)


def _tops_of_bytes(tops: Tensor) -> Tensor:
    whole = tops.to(torch.int32)
    return (whole[:, :1] + whole[:, 1:] * 256).unsqueeze(2)


def _pack(codes_PRNM: Tensor, bits: int, low: int, plane: Tensor) -> None:
    """Write `bits` bits of each code, from its bit `low` on, into a plane."""
    groups = 8 // bits
    panels, rows, strands, columns = codes_PRNM.shape
    parts = codes_PRNM.view(panels, rows, groups, strands // groups, columns)
    if low:
        parts = parts.bitwise_right_shift(low)
    # Bits above those of the plane would spill into the next group.
    fields = parts.bitwise_and((1 << bits) - 1)
    torch.add(fields[:, :, 0], fields[:, :, 1], alpha=1 << bits, out=plane)
    for group in range(2, groups):
        plane.add_(fields[:, :, group], alpha=1 << (bits * group))


def _unpack(plane: Tensor, bits: int, low: int, codes_PRNM: Tensor) -> None:
    """Read a plane into the codes, from bit `low` on; the lowest plane comes first."""
    groups = 8 // bits
    panels, rows, strands, columns = codes_PRNM.shape
    parts = codes_PRNM.view(panels, rows, groups, strands // groups, columns)
    for group in range(groups):
        field = plane.bitwise_right_shift(bits * group) if group else plane
        if low or group < groups - 1:
            field = torch.bitwise_and(
                field, (1 << bits) - 1, out=None if low else parts[:, :, group]
            )
            if low:
                parts[:, :, group].add_(field, alpha=1 << low)
        else:
            parts[:, :, group].copy_(field)
