"""The loops of sums on a grid: gradients rounded to it, sums as whole numbers and back.

Each value sees what `models/rounding/gradient_grid.py` and `tensors/codecs/int_grid.py` do by
torch's functions, in their order: the bits are the same.

Shapes:  N values in B blocks of `BLOCK`, of which the last may be shorter.
"""
# ruff: noqa: N803  shapes are written at the end of names

import numpy as np

from p2pswarm.kernels.jit import compiled_for, inlined

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Whole = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

# The numbers of both files, which tests/kernels compares. They stand here because compiled code is
# kept until this file changes.
BLOCK = 256
PERIOD = 16_381
WORK_BITS = 30
SHIFT_MIN, SHIFT_MAX = -98, 126
POWER_MAX = POWER_BIAS = 126
FRACTION_BITS, EXPONENT_BIAS = 23, 127

MAGNITUDE = np.int32(0x7FFFFFFF)  # of a float32's bits
INFINITE = np.int32(0x7F800000)
NO_MULTIPLES = -1
NO_SHIFT = SHIFT_MIN - 1


@inlined
def _power(exponent: int) -> np.float32:
    """A power of two from -126 to 127, as a float32."""
    return np.int32((exponent + EXPONENT_BIAS) << FRACTION_BITS).view(np.float32)


@inlined
def _shift(bits: Whole) -> int:
    """By how many powers of two a block's values become whole; `NO_SHIFT` if one is not finite."""
    top = np.int32(0)
    for m in range(len(bits)):
        top = max(top, bits[m] & MAGNITUDE)
    if top >= INFINITE:
        return NO_SHIFT
    if top == 0:
        return WORK_BITS
    exponent = int(top >> FRACTION_BITS) - EXPONENT_BIAS + 1  # of a value from 1/2 to 1
    return min(max(WORK_BITS - exponent, SHIFT_MIN), SHIFT_MAX)


@inlined
def _low_zeros(bits: int) -> int:
    """How many of the lowest bits are zeros; of zero, 0."""
    zeros = 0
    while bits != 0 and not (bits >> zeros) & 1:
        zeros += 1
    return zeros


@inlined
def _put(code: Whole, plane: Bytes) -> None:
    for m in range(len(plane)):
        code[m] = np.int32(plane[m])


@inlined
def _join(code: Whole, plane: Bytes, shift: int) -> None:
    for m in range(len(plane)):
        code[m] |= np.int32(np.int32(plane[m]) << shift)


@compiled_for(
    "int64(float32[::1], float32[::1], int64, float32[::1], float32[::1], float32, float32[::1])"
)
def add_rounded(
    part_N: Floats,
    chance: Floats,
    offset: int,
    per_step_B: Floats,
    step_B: Floats,
    units_max: float,
    total_N: Floats,
) -> int:
    """Round a gradient to the grid and add it to the sum; how many values were clamped.

    `chance`: of `PERIOD` places and then the first `BLOCK` again; the first value has `offset`.
    """
    clamped = 0
    for block in range(len(step_B)):
        begin, per_step, step = block * BLOCK, per_step_B[block], step_B[block]
        part, total = part_N[begin : begin + BLOCK], total_N[begin : begin + BLOCK]
        first, beyond = (offset + begin) % PERIOD, np.int32(0)
        drawn = chance[first : first + len(part)]
        for m in range(len(part)):
            units = np.rint(drawn[m] + part[m] * per_step)
            beyond += np.int32(abs(units) > units_max)
            total[m] += min(max(units, -units_max), units_max) * step
        clamped += int(beyond)
    return clamped


@compiled_for("int64(float32[::1], uint8[::1], uint8[::1], int32[::1])")
def read_multiples(x_N: Floats, power_B: Bytes, low_N: Bytes, code_N: Whole) -> int:
    """Read values as whole multiples: powers, codes and their lowest bytes.

    The bits of all codes together; `NO_MULTIPLES` if there are none.
    """
    same, found = np.zeros(BLOCK, np.float32), np.int32(0)
    same_bits = same.view(np.int32)
    for block in range(len(power_B)):
        begin = block * BLOCK
        x, code = x_N[begin : begin + BLOCK], code_N[begin : begin + BLOCK]
        bits, low = x.view(np.int32), low_N[begin : begin + BLOCK]
        shift = _shift(bits)
        if shift == NO_SHIFT:
            return NO_MULTIPLES
        up, down, all_bits, unlike = _power(shift), _power(-shift), np.int32(0), np.int32(0)
        for m in range(len(x)):
            code[m] = np.int32(x[m] * up)
            all_bits |= code[m]
        for m in range(len(x)):
            same[m] = np.float32(code[m]) * down
        for m in range(len(x)):
            unlike |= same_bits[m] ^ bits[m]
        if unlike:
            return NO_MULTIPLES
        power = min(_low_zeros(int(all_bits)) - shift, POWER_MAX)
        power_B[block] = np.uint8(power + POWER_BIAS)
        for m in range(len(x)):
            whole = np.int32(code[m] >> (power + shift))
            code[m] = np.int32((whole << 1) ^ (whole >> 31))
            found |= code[m]
        for m in range(len(x)):
            low[m] = np.uint8(code[m])
    return int(found)


@compiled_for("void(int32[::1], int64, uint8[::1])")
def take_bytes(code_N: Whole, place: int, plane_N: Bytes) -> None:
    """One byte of each code, counted from the lowest."""
    shift = 8 * place
    for m in range(len(plane_N)):
        plane_N[m] = np.uint8(code_N[m] >> shift)


@compiled_for(
    "void(uint8[::1], uint8[::1], uint8[::1], uint8[::1], uint8[::1], int64, float32[::1])"
)
def restore_multiples(
    power_B: Bytes,
    low_N: Bytes,
    second_N: Bytes,
    third_N: Bytes,
    high_N: Bytes,
    planes: int,
    x_N: Floats,
) -> None:
    """Write the values of codes, of which the first `planes` arrays have the bytes."""
    code = np.zeros(BLOCK, np.int32)
    for block in range(len(power_B)):
        begin, step = block * BLOCK, _power(int(power_B[block]) - POWER_BIAS)
        x = x_N[begin : begin + BLOCK]
        _put(code, low_N[begin : begin + BLOCK])
        if planes > 1:
            _join(code, second_N[begin : begin + BLOCK], 8)
        if planes > 2:  # noqa: PLR2004
            _join(code, third_N[begin : begin + BLOCK], 16)
        if planes > 3:  # noqa: PLR2004
            _join(code, high_N[begin : begin + BLOCK], 24)
        for m in range(len(x)):
            whole = np.int32((code[m] >> 1) ^ -(code[m] & 1))
            x[m] = np.float32(whole) * step
