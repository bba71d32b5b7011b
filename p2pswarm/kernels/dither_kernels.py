"""The loops of dither2 to dither6 (`tensors/codecs/dither.py`): a panel in two passes, or in one.

Each value sees the additions, products and roundings of the codec's torch functions in their order,
so the bytes are the same. What differs is where values wait: in tiles that stay in a core's first
cache. A tile has `TILE` columns of every strand. Where rows have fewer, it has several rows, one
beside the other; what is left of it is zeros.

Shapes:  a panel of R rows, each of N strands of M columns; tiles of N times T; B bytes.
"""
# ruff: noqa: N803, N806, PLR2004

from typing import NamedTuple

import numpy as np

from p2pswarm.kernels.jit import compiled_for, inlined

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Whole = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

TILE = 64  # of 16 strands 4 KiB

# The format's numbers, from dither.py and hadamard.py; tests/kernels compares them. They stand here
# because compiled code is kept until this file changes.
PERIOD = 4093
PEAK_MAX_BITS = np.int32(np.float32(2.0**110).view(np.int32))
TINY_BITS = np.int32(np.float32(2.0**-60).view(np.int32))
LIFT = np.float32(2.0**80)
LIFTED = np.int32(1 << 12)
CODE_SHIFT = np.int32(20)
TO_NEXT_CODE = np.int32((1 << 20) - 1)
TOP_MAX, TOP_MIN = np.int32(8 * (127 + 110)), np.int32(255 + 8)
TOP_OF_ZEROS = np.int32(512)
BELOW_TOP = np.int32(255)
TOP_BYTES = 2

ONE = np.float32(1)
MAGNITUDE = np.int32(0x7FFFFFFF)  # of a float32's bits: as whole numbers NaN is the greatest


class Panel(NamedTuple):
    """The shape of a panel, and how many bits a code has."""

    rows: int
    strands: int
    columns: int
    bits: int


class Tile(NamedTuple):
    """Which values of a panel a tile has."""

    row: int
    beside: int
    """Rows."""
    column: int
    width: int
    """Columns of each row."""


def tiles_of(rows: int, columns: int) -> int:
    """How many tiles a panel has."""
    if columns >= TILE:
        return rows * ((columns + TILE - 1) // TILE)
    each = TILE // columns
    return (rows + each - 1) // each


def encoding_floats(rows: int, strands: int, columns: int) -> int:
    """How many float32 of memory `encode` works in."""
    return tiles_of(rows, columns) * (strands + 1) * TILE + strands * TILE // 4


_tiles = inlined(tiles_of)


@inlined
def _tile(panel: Panel, number: int) -> Tile:
    """Where a tile is."""
    if panel.columns >= TILE:
        of_row = (panel.columns + TILE - 1) // TILE
        column = number % of_row * TILE
        return Tile(number // of_row, 1, column, min(TILE, panel.columns - column))
    each = TILE // panel.columns
    row = number * each
    return Tile(row, min(each, panel.rows - row), 0, panel.columns)


@inlined
def _read(panel: Panel, tile: Tile, x: Floats, sign_N: Floats, y: Floats) -> None:
    """A tile's values, each with its strand's sign."""
    if tile.beside * tile.width < TILE:
        y[:] = np.float32(0)
    for r in range(tile.beside):
        for n in range(panel.strands):
            at = ((tile.row + r) * panel.strands + n) * panel.columns + tile.column
            to = n * TILE + r * tile.width
            given, made, sign = x[at : at + tile.width], y[to : to + tile.width], sign_N[n]
            for m in range(len(made)):
                made[m] = given[m] * sign


@inlined
def _write(
    panel: Panel, tile: Tile, y: Floats, lowering: np.float32, sign_N: Floats, x: Floats
) -> None:
    """The panel's values, each with its strand's sign again."""
    for r in range(tile.beside):
        for n in range(panel.strands):
            at = ((tile.row + r) * panel.strands + n) * panel.columns + tile.column
            begin = n * TILE + r * tile.width
            given, made, sign = y[begin : begin + tile.width], x[at : at + tile.width], sign_N[n]
            for m in range(len(made)):
                made[m] = given[m] * lowering * sign


@inlined
def _mix(y: Floats, strands: int) -> None:
    """The Hadamard transform of 16 or 32 strands times the root of their number."""
    if strands == 32:
        near, far = y[: 16 * TILE], y[16 * TILE : 32 * TILE]
        for m in range(16 * TILE):
            a, b = near[m], far[m]
            near[m], far[m] = a + b, a - b
        _mix_16(far)
    _mix_16(y[: 16 * TILE])


@inlined
def _mix_16(y: Floats) -> None:
    """The transform of 16 strands, in one pass: a column's values are 16 registers."""
    for m in range(TILE):
        a, b, c, d = y[m], y[TILE + m], y[2 * TILE + m], y[3 * TILE + m]
        e, f, g, h = y[4 * TILE + m], y[5 * TILE + m], y[6 * TILE + m], y[7 * TILE + m]
        i, j, k, l = y[8 * TILE + m], y[9 * TILE + m], y[10 * TILE + m], y[11 * TILE + m]  # noqa: E741
        n, o, p, q = y[12 * TILE + m], y[13 * TILE + m], y[14 * TILE + m], y[15 * TILE + m]
        a, b, c, d, i, j, k, l = a + i, b + j, c + k, d + l, a - i, b - j, c - k, d - l  # noqa: E741
        e, f, g, h, n, o, p, q = e + n, f + o, g + p, h + q, e - n, f - o, g - p, h - q
        a, b, c, d, e, f, g, h = a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h
        i, j, k, l, n, o, p, q = i + n, j + o, k + p, l + q, i - n, j - o, k - p, l - q  # noqa: E741
        a, b, c, d, e, f, g, h = a + c, b + d, a - c, b - d, e + g, f + h, e - g, f - h
        i, j, k, l, n, o, p, q = i + k, j + l, i - k, j - l, n + p, o + q, n - p, o - q  # noqa: E741
        y[m], y[TILE + m], y[2 * TILE + m], y[3 * TILE + m] = a + b, a - b, c + d, c - d
        y[4 * TILE + m], y[5 * TILE + m], y[6 * TILE + m], y[7 * TILE + m] = (
            *(e + f, e - f, g + h, g - h),
        )
        y[8 * TILE + m], y[9 * TILE + m], y[10 * TILE + m], y[11 * TILE + m] = (
            *(i + j, i - j, k + l, k - l),
        )
        y[12 * TILE + m], y[13 * TILE + m], y[14 * TILE + m], y[15 * TILE + m] = (
            *(n + o, n - o, p + q, p - q),
        )


@inlined
def _peaks(y: Whole, strands: int, peak: Whole) -> None:
    """The greatest magnitude of each column, as a float32's bits."""
    peak[:] = np.int32(0)
    for n in range(strands):
        given = y[n * TILE : (n + 1) * TILE]
        for m in range(TILE):
            magnitude = given[m] & MAGNITUDE
            peak[m] = max(peak[m], magnitude)


@inlined
def _write_scales(panel: Panel, tile: Tile, code: Whole, least: np.int32, scale_B: Bytes) -> None:
    """The byte of each block, and the reciprocal of its step in the place of its code."""
    for m in range(TILE):
        code[m] = max(code[m], least)
    for r in range(tile.beside):
        at = (tile.row + r) * panel.columns + tile.column
        given = code[r * tile.width : (r + 1) * tile.width]
        made = scale_B[at : at + tile.width]
        for m in range(len(made)):
            made[m] = np.uint8(given[m] - least)
    for m in range(TILE):
        code[m] = code[m] << CODE_SHIFT
    step = code.view(np.float32)
    for m in range(TILE):
        step[m] = ONE / step[m]


@inlined
def _read_scales(
    panel: Panel, tile: Tile, scale_B: Bytes, least: np.int32, code: Bytes, step: Floats
) -> None:
    """The step of each block over the number of strands; of a block of zeros 0."""
    for r in range(tile.beside):
        at = (tile.row + r) * panel.columns + tile.column
        made, given = code[r * tile.width : (r + 1) * tile.width], scale_B[at : at + tile.width]
        for m in range(len(made)):
            made[m] = given[m]
    step_bits, share = step.view(np.int32), np.float32(ONE / np.float32(panel.strands))
    for m in range(TILE):
        step_bits[m] = np.int32(np.int32(code[m]) + least) << CODE_SHIFT
    for m in range(TILE):
        step[m] = step[m] * share if code[m] else np.float32(0)


@inlined
def _quantise(
    panel: Panel,
    tile: Tile,
    y: Floats,
    lift: np.float32,
    per_step: Floats,
    dither: Floats,
    field_NT: Bytes,
) -> None:
    """The codes of a tile."""
    for r in range(tile.beside):
        factor = per_step[r * tile.width : (r + 1) * tile.width]
        for n in range(panel.strands):
            at = ((tile.row + r) * panel.strands + n) * panel.columns + tile.column
            u = dither[at % PERIOD : at % PERIOD + tile.width]
            begin = n * TILE + r * tile.width
            given = y[begin : begin + tile.width]
            made = field_NT[begin : begin + tile.width]
            for m in range(len(made)):
                # positive: to cut is to round down
                made[m] = np.uint8(np.int32(given[m] * lift * factor[m] + u[m]))


@inlined
def _dequantise(
    panel: Panel, tile: Tile, field_NT: Bytes, dither: Floats, step: Floats, y: Floats
) -> None:
    """The values that a tile's codes stand for, over the number of strands."""
    for r in range(tile.beside):
        factor = step[r * tile.width : (r + 1) * tile.width]
        for n in range(panel.strands):
            at = ((tile.row + r) * panel.strands + n) * panel.columns + tile.column
            u = dither[at % PERIOD : at % PERIOD + tile.width]
            begin = n * TILE + r * tile.width
            given = field_NT[begin : begin + tile.width]
            made = y[begin : begin + tile.width]
            for m in range(len(made)):
                made[m] = (np.float32(given[m]) - u[m]) * factor[m]


@inlined
def _pack_all(panel: Panel, tile: Tile, field_NT: Bytes, plane_B: Bytes) -> None:
    """Write the planes of a tile, the lowest bits first."""
    bits = panel.bits
    low = 4 if bits >= 4 else 2
    _pack(panel, tile, field_NT, low, plane_B)
    if bits > low:
        rest = plane_B[panel.rows * panel.columns * (panel.strands * low // 8) :]
        for m in range(len(field_NT)):
            field_NT[m] = field_NT[m] >> 4 if low == 4 else field_NT[m] >> 2
        _pack(panel, tile, field_NT, bits - low, rest)


@inlined
def _pack(panel: Panel, tile: Tile, field_NT: Bytes, bits: int, plane_B: Bytes) -> None:
    """Write the lowest bits of each code.

    Products, because a shift of bytes by a variable is not done for many at once.
    """
    groups = 8 // bits
    high, mask = panel.strands // groups, np.uint8((1 << bits) - 1)
    for r in range(tile.beside):
        for n in range(high):
            at = ((tile.row + r) * high + n) * panel.columns + tile.column
            made = plane_B[at : at + tile.width]
            begin = n * TILE + r * tile.width
            given = field_NT[begin : begin + tile.width]
            for m in range(len(made)):
                made[m] = given[m] & mask
            for group in range(1, groups):
                begin += high * TILE
                given = field_NT[begin : begin + tile.width]
                factor = np.uint8(1 << (group * bits))
                for m in range(len(made)):
                    made[m] = np.uint8(made[m] + np.uint8(given[m] & mask) * factor)


@inlined
def _join(given: Bytes, shift: int, bits: int, field: Bytes) -> None:
    """Lift codes by some bits, and put bits of a plane below."""
    for m in range(len(given)):
        field[m] = np.uint8((field[m] << bits) | ((given[m] >> shift) & ((1 << bits) - 1)))


@inlined
def _unpack_all(panel: Panel, tile: Tile, plane_B: Bytes, field_NT: Bytes) -> None:
    """Read the planes of a tile into its codes, the highest bits first."""
    low = 4 if panel.bits >= 4 else 2
    begin = panel.rows * panel.columns * (panel.strands * low // 8)
    field_NT[:] = np.uint8(0)
    for bits in (panel.bits - low, low):
        if bits:
            _unpack(panel, tile, plane_B[begin:], bits, field_NT)
        begin = 0


@inlined
def _unpack(panel: Panel, tile: Tile, plane_B: Bytes, bits: int, field_NT: Bytes) -> None:
    """Read a plane. Every shift is written out, because only so many are done at a time."""
    high, width = panel.strands * bits // 8, tile.width
    for r in range(tile.beside):
        for n in range(high):
            at = ((tile.row + r) * high + n) * panel.columns + tile.column
            given, apart = plane_B[at : at + width], high * TILE
            begin = n * TILE + r * width
            to = field_NT[begin:]
            if bits == 4:
                _join(given, 0, 4, to)
                _join(given, 4, 4, to[apart:])
            elif bits == 2:
                _join(given, 0, 2, to)
                _join(given, 2, 2, to[apart:])
                _join(given, 4, 2, to[2 * apart :])
                _join(given, 6, 2, to[3 * apart :])
            else:
                _join(given, 0, 1, to)
                _join(given, 1, 1, to[apart:])
                _join(given, 2, 1, to[2 * apart :])
                _join(given, 3, 1, to[3 * apart :])
                _join(given, 4, 1, to[4 * apart :])
                _join(given, 5, 1, to[5 * apart :])
                _join(given, 6, 1, to[6 * apart :])
                _join(given, 7, 1, to[7 * apart :])


@inlined
def _encode_panel(
    panel: Panel,
    x: Floats,
    sign_N: Floats,
    dither: Floats,
    step_per_peak: float,
    work: Floats,
    encoded_B: Bytes,
) -> bool:
    rows, strands, columns, _ = panel
    tiles, size = _tiles(rows, columns), strands * TILE
    y_NT, step_T = work[: tiles * size], work[tiles * size : tiles * (size + TILE)]
    code_T = step_T.view(np.int32)
    field_NT = work[tiles * (size + TILE) :].view(np.uint8)[:size]

    top = np.int32(0)
    for number in range(tiles):
        tile, y = _tile(panel, number), y_NT[number * size : (number + 1) * size]
        _read(panel, tile, x, sign_N, y)
        _mix(y, strands)
        peak = code_T[number * TILE : (number + 1) * TILE]
        _peaks(y.view(np.int32), strands, peak)
        for m in range(TILE):
            top = max(top, peak[m])
    if top > PEAK_MAX_BITS:
        return False

    lift = LIFT if top < TINY_BITS else ONE
    greatest = TOP_OF_ZEROS
    for m in range(len(step_T)):
        step_T[m] = step_T[m] * lift * step_per_peak
        code_T[m] = (code_T[m] + TO_NEXT_CODE) >> CODE_SHIFT  # rounded up
        greatest = max(greatest, code_T[m])
    mark = greatest + LIFTED if top < TINY_BITS else greatest
    encoded_B[0], encoded_B[1] = np.uint8(mark & 255), np.uint8(mark >> 8)

    scale_B = encoded_B[TOP_BYTES : TOP_BYTES + rows * columns]
    plane_B = encoded_B[TOP_BYTES + rows * columns :]
    for number in range(tiles):
        tile, y = _tile(panel, number), y_NT[number * size : (number + 1) * size]
        code = code_T[number * TILE : (number + 1) * TILE]
        _write_scales(panel, tile, code, np.int32(greatest - BELOW_TOP), scale_B)
        per_step = step_T[number * TILE : (number + 1) * TILE]
        _quantise(panel, tile, y, lift, per_step, dither, field_NT)
        _pack_all(panel, tile, field_NT, plane_B)
    return True


@compiled_for(
    "boolean(float32[::1], int64, int64, int64, int64, int64, float32[::1], float32[::1], float32,"
    " float32[::1], uint8[::1])"
)
def encode(
    x: Floats,
    panels: int,
    rows: int,
    strands: int,
    columns: int,
    bits: int,
    sign_N: Floats,
    dither: Floats,
    step_per_peak: float,
    work: Floats,
    encoded_B: Bytes,
) -> bool:
    """Write the bytes of panels; False for values that the codec cannot hold.

    `dither`: of `PERIOD` places and then the first `TILE` again; `work`: of `encoding_floats`.
    """
    panel = Panel(rows, strands, columns, bits)
    values, size_bytes = len(x) // panels, len(encoded_B) // panels
    for number in range(panels):
        given = x[number * values : (number + 1) * values]
        made = encoded_B[number * size_bytes : (number + 1) * size_bytes]
        if not _encode_panel(panel, given, sign_N, dither, step_per_peak, work, made):
            return False
    return True


@compiled_for(
    "boolean(uint8[::1], int64, int64, int64, int64, int64, float32[::1], float32[::1],"
    " float32[::1])"
)
def decode(
    encoded_B: Bytes,
    panels: int,
    rows: int,
    strands: int,
    columns: int,
    bits: int,
    sign_N: Floats,
    dither: Floats,
    x: Floats,
) -> bool:
    """Restore panels; False if one has a greatest scale that no encoder makes.

    `dither`: as of `encode`, less 1/2.
    """
    panel = Panel(rows, strands, columns, bits)
    y = np.zeros(strands * TILE, np.float32)
    field_NT = np.zeros(strands * TILE, np.uint8)
    step, code = np.zeros(TILE, np.float32), np.zeros(TILE, np.uint8)
    values, size_bytes = len(x) // panels, len(encoded_B) // panels
    for number in range(panels):
        made = x[number * values : (number + 1) * values]
        given = encoded_B[number * size_bytes : (number + 1) * size_bytes]
        mark = np.int32(given[0]) + 256 * np.int32(given[1])
        top = mark % LIFTED
        if mark >= 2 * LIFTED or top > TOP_MAX or top < TOP_MIN:
            return False
        least = np.int32(top - BELOW_TOP)
        lowering = ONE / LIFT if mark >= LIFTED else ONE
        scale_B = given[TOP_BYTES : TOP_BYTES + rows * columns]
        plane_B = given[TOP_BYTES + rows * columns :]
        for place in range(_tiles(rows, columns)):
            tile = _tile(panel, place)
            _read_scales(panel, tile, scale_B, least, code, step)
            _unpack_all(panel, tile, plane_B, field_NT)
            _dequantise(panel, tile, field_NT, dither, step, y)
            _mix(y, strands)
            _write(panel, tile, y, lowering, sign_N, made)
    return True
