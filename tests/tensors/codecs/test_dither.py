"""Dither: the bytes of its definition, no error on average, and nothing that is not finite."""

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from core import core_of, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs import dither, hadamard
from p2pswarm.tensors.codecs.base import TORCH, Unencodable
from p2pswarm.tensors.codecs.dither import PANEL_VALUES, TOP_MAX, Dither
from p2pswarm.tensors.codecs.meta import Dtype
from p2pswarm.tensors.codecs.registry import CODECS, decoder, encode, round_trip

DITHERS = [codec for codec in CODECS if isinstance(codec, Dither)]
NAMES = [codec.name for codec in DITHERS]
KEY = bytes(range(8))
DRAWS = 4096  # in full
F32 = np.float32
every_width = pytest.mark.parametrize("name", NAMES)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(x: np.ndarray, codec: Dither, key: bytes) -> bytes:
    """The bytes of a tensor of one panel, value by value, as docs/codecs.md defines them."""
    n, bits, (rows, width) = codec.strands, codec.bits, x.shape
    columns = width // n
    stream = hashlib.shake_128(key).digest(4 + n + 2 * 4093)
    signs = [1 if byte % 2 else -1 for byte in stream[4 : 4 + n]]
    levels = 2 ** (bits - 1) - 0.5
    mixed = np.zeros((rows, n, columns), F32)
    for r in range(rows):
        for c in range(columns):
            column = [F32(signs[k] * x[r, k * columns + c]) for k in range(n)]
            apart = n // 2
            while apart:
                for k in range(n):
                    if not k & apart:
                        a, b = column[k], column[k + apart]
                        column[k], column[k + apart] = F32(a + b), F32(a - b)
                apart //= 2
            mixed[r, :, c] = column
    steps = (abs(mixed).max(1) * F32((1 + 2.0**-21) / levels)).astype(F32)
    codes = (steps.view(np.int32).astype(np.int64) + (1 << 20) - 1) >> 20
    top = int(codes.max())
    kept = np.maximum(codes - top + 255, 0)
    scales = ((kept + top - 255) << 20).astype(np.int32).view(F32)
    written = np.zeros((rows, n, columns), np.uint8)
    for r in range(rows):
        for k in range(n):
            for c in range(columns):
                at = 4 + n + 2 * ((r * width + k * columns + c) % 4093)
                draw = int.from_bytes(stream[at : at + 2], "little")
                shift = F32((draw + 0.5) / 65536 + levels)
                share = F32(mixed[r, k, c] * F32(F32(1) / scales[r, c]))
                written[r, k, c] = math.floor(F32(share + shift))
    packed, low = [], 0
    for plane in {6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}[bits]:
        groups = 8 // plane
        fields = (written >> low & (1 << plane) - 1).reshape(rows, groups, n // groups, columns)
        packed.append(sum(fields[:, g].astype(int) << plane * g for g in range(groups)))
        low += plane
    parts = [each.astype(np.uint8).tobytes() for each in (kept, *packed)]
    return stream[:4] + top.to_bytes(2, "little") + b"".join(parts)


@every_width
def test_bytes_are_those_of_the_definition(name):
    x = gaussian(5, 96) * torch.logspace(-4, 4, 96)
    codec = next(each for each in DITHERS if each.name == name)

    encoded = encode(x, name, 0, key=KEY)

    assert bytes(encoded.data) == by_hand(x.numpy(), codec, KEY)


UNLIKE = {
    "gaussian": gaussian(2, 64),
    "spike": gaussian(2, 64) * torch.cat([torch.ones(63), torch.tensor([100.0])]),
    "channels": gaussian(2, 64) * torch.linspace(0, 3, 64).exp(),
    "denormal": gaussian(2, 64) * 1e-39,
    "unlike rows": torch.cat([gaussian(1, 64), gaussian(1, 64) * 1e-5]),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    core_of(
        itertools.product(NAMES, UNLIKE),
        {*((name, "gaussian") for name in NAMES), *((NAMES[0], kind) for kind in UNLIKE)},
    ),
)
def test_mean_over_keys_is_the_tensor_itself(name, kind):
    x = UNLIKE[kind]
    draws = DRAWS if examples(100) == 100 else 300

    total, square = torch.zeros(2, 64, dtype=torch.float64), torch.zeros(2, 64, dtype=torch.float64)
    for draw in range(draws):
        error = round_trip(x, name, draw.to_bytes(8)).double() - x.double()
        total += error
        square += error.square()

    sigma = (square / draws).sqrt() / draws**0.5
    assert ((total / draws).abs() <= 4.5 * sigma + 2.0**-149).all()  # of 128 values, 4 sigma is few
    assert abs((total / draws).sum()) <= 4 * sigma.square().sum().sqrt() + 128 * 2.0**-149


@every_width
def test_mean_square_of_the_error_is_a_twelfth_of_the_squared_step(name):
    x = gaussian(64, 1024)
    codec = next(each for each in DITHERS if each.name == name)

    error = round_trip(x, name, KEY) - x

    step = 2.07 * 1.06 / (2 ** (codec.bits - 1) - 0.5)  # of the greatest of 16 among Gaussians
    wider = 1.13 if codec.strands > 16 else 1.0
    assert error.square().mean().sqrt() == pytest.approx(wider * step / 12**0.5, rel=0.06)


@every_width
@given(st.integers(0, 2**32), st.integers(0, 3000), st.floats(-44, 30), st.sampled_from(Dtype))
@settings(max_examples=examples(100))
def test_what_arrives_is_finite_and_within_a_step(name, seed, values, power, dtype):
    if TORCH[dtype] not in (torch.float32, torch.float64):
        dtype = Dtype.FLOAT32
    x = (gaussian(values, seed=seed).double() * 10.0**power).to(TORCH[dtype])

    got = round_trip(x, name, KEY)

    assert got.shape == x.shape
    assert got.isfinite().all()
    if values:
        bound = {"2": 6.0, "3": 3.0, "4": 1.0, "5": 0.5, "6": 0.25}[name[-1]]
        assert (got - x).abs().max() <= bound * x.abs().max() + 2.0**-147


@every_width
def test_what_no_float16_holds_arrives_as_its_greatest(name):
    x = torch.full((4, 64), torch.finfo(torch.float16).max, dtype=torch.float16)

    got = round_trip(x, name, KEY)

    assert got.isfinite().all()
    assert (got == x).any()


@every_width
def test_zeros_arrive_as_zeros(name):
    assert torch.equal(round_trip(torch.zeros(3, 64), name, KEY), torch.zeros(3, 64))
    assert round_trip(torch.zeros(0, 64), name, KEY).shape == (0, 64)


@every_width
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
def test_what_would_not_stay_finite_is_refused(name, value):
    x = torch.ones(3, 64)
    x[1, 5] = value

    with pytest.raises(Unencodable, match=f"{name} cannot hold NaN, infinities"):
        encode(x, name, key=KEY)


@every_width
def test_panels_are_the_same_bytes_one_by_one_and_at_once(name):
    """A GPU works on all of them together; docs/codecs.md has one definition for both."""
    codec = next(each for each in DITHERS if each.name == name)
    x = gaussian(3 * PANEL_VALUES // 256 + 5, 256)
    layout = dither.TensorLayout(Dtype.FLOAT32, tuple(x.shape))
    panels, draw = dither._Panels(layout, codec), dither._DitherDraw(KEY, codec)
    made = []
    for at_once in (False, True):
        encoded = torch.zeros(panels.encoded_bytes, dtype=torch.uint8)
        for group in panels.groups(at_once=at_once):
            x_group = x[group.rows].view(group.shape)
            codec._quantise(x_group, group.of(encoded), group, draw, hadamard.Scratch(x.device))
        made.append(encoded)

    assert torch.equal(*made)
    assert bytes(encode(x, name, 0, key=KEY).data)[4:] == bytes(made[0].numpy())[4:]


@every_width
def test_a_scale_that_no_encoder_makes_is_refused(name):
    encoded = encode(gaussian(4, 64), name, 0, key=KEY)
    for code in (TOP_MAX + 1, 0xFFFF, 0):
        place = decoder(encoded.meta, key=KEY)
        place.buffer[:] = encoded.data
        place.buffer[4:6] = code.to_bytes(2, "little")

        with pytest.raises(BadMessage, match="scale that no encoder makes"):
            place.finish()


@every_width
def test_there_is_no_encoding_without_a_key(name):
    with pytest.raises(ValueError, match="needs a key"):
        encode(torch.ones(64), name)
    with pytest.raises(BadMessage, match="where no key is known"):
        decoder(encode(torch.ones(64), name, key=KEY).meta)
