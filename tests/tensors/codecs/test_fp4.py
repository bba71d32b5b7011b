"""FP4: the published tables, the bytes of the definition, and errors within their bounds."""

import hashlib
import math

import numpy as np
import pytest
import torch
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.tensors.codecs.base import TORCH, TensorUse, Unencodable
from p2pswarm.tensors.codecs.meta import Dtype, TensorMeta
from p2pswarm.tensors.codecs.registry import BY_NAME, decoder, encode, named, round_trip

NAMES = ("nvfp4", "nvfp4-eden", "mxfp4")
KEY = bytes(range(8))
DRAWS = 4096  # in full
F32 = np.float32
every_codec = pytest.mark.parametrize("name", NAMES)

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of the codes 0 to 7; 8 to 15 are the same with a minus."""

# fmt: off
E4M3 = (  # times 2^-9; 0x00 to 0x7E, and 0x80 to 0xFE with a minus
    0, 1, 2, 3, 4, 5, 6, 7,
    8, 9, 10, 11, 12, 13, 14, 15,
    16, 18, 20, 22, 24, 26, 28, 30,
    32, 36, 40, 44, 48, 52, 56, 60,
    64, 72, 80, 88, 96, 104, 112, 120,
    128, 144, 160, 176, 192, 208, 224, 240,
    256, 288, 320, 352, 384, 416, 448, 480,
    512, 576, 640, 704, 768, 832, 896, 960,
    1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920,
    2048, 2304, 2560, 2816, 3072, 3328, 3584, 3840,
    4096, 4608, 5120, 5632, 6144, 6656, 7168, 7680,
    8192, 9216, 10240, 11264, 12288, 13312, 14336, 15360,
    16384, 18432, 20480, 22528, 24576, 26624, 28672, 30720,
    32768, 36864, 40960, 45056, 49152, 53248, 57344, 61440,
    65536, 73728, 81920, 90112, 98304, 106496, 114688, 122880,
    131072, 147456, 163840, 180224, 196608, 212992, 229376,
)
# fmt: on


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def restored(name: str, data: bytes, *shape: int) -> torch.Tensor:
    """What a receiver makes of bytes."""
    place = decoder(TensorMeta(Dtype.FLOAT32, shape, BY_NAME[name].code, len(data)), key=KEY)
    place.buffer[:] = data
    return place.finish()


def packed(codes) -> bytes:
    return bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True))


def code_of(table, value: float) -> int:
    """Round to nearest, ties to the even code, what is past the table to its last."""
    value = min(abs(float(value)), table[-1])
    return min(range(len(table)), key=lambda code: (abs(table[code] - value), code % 2))


def e4m3_of(value: float) -> int:
    return code_of([each / 512 for each in E4M3], value)


def signed(x, codes):
    return [code | 8 * bool(value < 0) for value, code in zip(x, codes, strict=True)]


def halved(terms):
    terms = list(terms)
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [F32(a + b) for a, b in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


def nvfp4_by_hand(x: np.ndarray) -> bytes:
    blocks = x.reshape(-1, 16)
    scale = F32(float(abs(x).max()) / 1536)
    scales, codes = [], []
    for block in blocks:
        wanted = F32(abs(block).max() * F32(1 / (6 * float(scale))))
        best = None
        for more in (1.0, 1.5):
            kept = max(1, e4m3_of(F32(wanted * F32(more))))
            step = F32(E4M3[kept] / 512)
            share = abs(block) * F32(F32(1) / F32(step * scale))
            found = [code_of(E2M1, each) for each in share]
            errors = share - np.array([E2M1[each] for each in found], F32)
            error = F32(F32(halved(errors * errors) * step) * step)
            if best is None or error < best[0]:
                best = error, kept, found
        scales.append(best[1])
        codes += signed(block, best[2])
    return scale.tobytes() + bytes(scales) + packed(codes)


def eden_by_hand(x: np.ndarray, key: bytes) -> bytes:
    stream = hashlib.shake_128(key).digest(4 + 32 + 2 * 4093)
    signs = np.array([1 if byte % 2 else -1 for byte in stream[4:36]], F32)
    rows = [list(each) for each in x.reshape(-1, 32) * signs]
    for row in rows:
        apart = 16
        while apart:
            for k in range(32):
                if not k & apart:
                    a, b = row[k], row[k + apart]
                    row[k], row[k + apart] = F32(a + b), F32(a - b)
            apart //= 2
    mixed = np.array(rows, F32).reshape(-1, 2, 16)
    aim = 17 / 16 * 0.93
    scale = F32(float(abs(mixed).max()) / (255.99 * 6 / aim))
    scales, codes = [], []
    for number, row in enumerate(mixed):
        steps, given, whole = [], [], []
        for block in row:
            wanted = F32(abs(block).max() * F32(aim / (6 * float(scale))))
            steps.append(F32(E4M3[max(1, e4m3_of(wanted))] / 512))
            share = abs(block) * F32(F32(1) / F32(steps[-1] * scale))
            found = [code_of(E2M1, each) for each in share]
            square = F32(steps[-1] * steps[-1])
            kept = np.array([E2M1[each] for each in found], F32)
            given.append(F32(halved(share * kept) * square))
            whole.append(F32(halved(share * share) * square))
            codes += signed(block, found)
        more = F32(halved(whole) / halved(given)) if halved(given) > 0 else F32(1)
        for half, step in enumerate(steps):
            at = 36 + 2 * ((2 * number + half) % 4093)
            chance = int.from_bytes(stream[at : at + 2], "little") * 16 + 8
            exact = F32(step * more)
            if exact < 2.0**-6:  # in whole 2^-29
                exact = F32(F32(exact + F32(2.0**-6)) - F32(2.0**-6))
            below = max(code for code, each in enumerate(E4M3) if each / 512 <= exact)
            low, high = E4M3[below] / 512, E4M3[below + 1] / 512
            share = (float(exact) - low) / (high - low)  # in 2^-20 of a step, cut off
            scales.append(below + (math.floor(share * 2**20) + chance >= 2**20))
    return stream[:4] + scale.tobytes() + bytes(scales) + packed(codes)


def mxfp4_by_hand(x: np.ndarray) -> bytes:
    scales, codes = [], []
    for block in x.reshape(-1, 32):
        top = float(abs(block).max())
        power = max(-127, math.floor(math.log2(top)) - 2) if top else -127
        scales.append(power + 127)
        codes += signed(block, [code_of(E2M1, float(each) / 2.0**power) for each in block])
    return bytes(scales) + packed(codes)


def test_every_code_is_the_published_value():
    codes = list(range(16))
    values = torch.tensor([*E2M1, *(-each for each in E2M1)])
    one = (127).to_bytes() + packed(codes + codes)
    nv = F32(0.25).tobytes() + bytes([0x38]) + packed(codes)

    assert torch.equal(restored("mxfp4", one, 32), values.repeat(2))
    assert torch.equal(restored("nvfp4", nv, 16), values / 4)


def test_every_value_between_two_codes_goes_to_the_nearer_and_halves_to_the_even_one():
    edges = [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)]
    for edge, even in edges:
        near = [np.nextafter(F32(edge), F32(to)) for to in (0, 9)]
        x = torch.tensor([near[0], edge, near[1], 6.0, *[0.0] * 28])

        data = encode(x, "mxfp4", 0).data

        low, high = code_of(E2M1, near[0]), code_of(E2M1, near[1])
        assert (data[1] & 15, data[1] >> 4, data[2]) == (low, even, high | 7 << 4)
        assert high == low + 1


def test_every_finite_e4m3_scale_is_the_published_value_and_no_other_is_taken():
    assert len(E4M3) == 127
    for code in range(256):
        data = F32(1.0).tobytes() + bytes([code]) + packed([2, 10] * 8)
        if code > 0x7E:  # a scale has no sign, and 0x7F and 0xFF are no numbers
            with pytest.raises(BadMessage, match="nvfp4 scale that no encoder makes"):
                restored("nvfp4", data, 16)
        else:
            assert restored("nvfp4", data, 16).tolist() == [E4M3[code] / 512, -E4M3[code] / 512] * 8


def test_every_e8m0_scale_is_a_power_of_two_and_what_would_be_infinite_is_refused():
    for code in range(256):
        data = bytes([code]) + packed([2, 15] * 16)
        if code > 252:  # 6 * 2^126 is no float32, and 0xFF is no number
            with pytest.raises(BadMessage, match="mxfp4 scale that no encoder makes"):
                restored("mxfp4", data, 32)
        else:
            assert (
                restored("mxfp4", data, 32).tolist()
                == [2.0 ** (code - 127), -6 * 2.0 ** (code - 127)] * 16
            )


def test_torchs_own_e4m3_is_the_same():
    codes = torch.arange(127, dtype=torch.uint8)

    assert torch.equal(codes.view(torch.float8_e4m3fn).float() * 512, torch.tensor(E4M3).float())


@every_codec
@pytest.mark.parametrize(
    "x",
    [
        gaussian(6, 64),
        gaussian(6, 64) * torch.logspace(-6, 4, 64),
        gaussian(6, 64) * 10.0 ** gaussian(6, 1, seed=1),
        torch.cat([gaussian(1, 32), torch.zeros(1, 32), gaussian(1, 32) * 1e-12]),
        gaussian(6, 64).bfloat16(),
    ],
    ids=["gaussian", "channels", "rows", "zeros", "bfloat16"],
)
def test_bytes_are_those_of_the_definition(name, x):
    by_hand = {
        "nvfp4": nvfp4_by_hand,
        "nvfp4-eden": lambda values: eden_by_hand(values, KEY),
        "mxfp4": mxfp4_by_hand,
    }

    encoded = encode(x, name, 0, key=KEY)

    with np.errstate(invalid="ignore"):
        assert bytes(encoded.data) == by_hand[name](x.float().numpy())


@every_codec
def test_a_value_costs_half_a_byte_and_its_share_of_scales(name):
    head, block = {"nvfp4": (4, 16), "nvfp4-eden": (8, 16), "mxfp4": (0, 32)}[name]

    sizes = [encode(torch.ones(values), name, 0, key=KEY).meta.encoded_bytes for values in (320, 1)]

    row = max(block, 32 if name == "nvfp4-eden" else block)
    assert sizes == [head + 160 + 320 // block, head + row // 2 + row // block]


@every_codec
def test_chunks_are_the_same_bytes_as_all_at_once(name, monkeypatch):
    x = gaussian(67, 96)
    whole = bytes(encode(x, name, 0, key=KEY).data)
    came = round_trip(x, name, KEY)
    monkeypatch.setattr("p2pswarm.tensors.codecs.fp4.CHUNK_VALUES", 96)

    assert bytes(encode(x, name, 0, key=KEY).data) == whole
    assert torch.equal(round_trip(x, name, KEY), came)


@pytest.mark.parametrize(
    ("name", "error"), [("nvfp4", 0.087), ("nvfp4-eden", 0.098), ("mxfp4", 0.115)]
)
def test_error_of_gaussian_values_is_the_published_one(name, error):
    x = gaussian(64, 1024)

    assert (round_trip(x, name, KEY) - x).norm() / x.norm() == pytest.approx(error, rel=0.03)


def test_a_top_of_four_or_six_is_better_than_six_alone():
    x = gaussian(64, 1024)
    scales = np.frombuffer(encode(x, "nvfp4", 0).data, np.uint8)[4 : 4 + 4096]
    tops = x.view(-1, 16).abs().amax(1) / (x.abs().max() / 1536)

    share = (tops / torch.tensor([E4M3[code] / 512 for code in scales]) < 5).float().mean()

    assert 0.3 < share < 0.7  # of blocks whose top is 4


@pytest.mark.parametrize(
    "x",
    [
        gaussian(2, 64),
        gaussian(2, 64) * torch.tensor([1.0, 3.0]).unsqueeze(1),
        gaussian(2, 64) * 1e-38,
    ],
    ids=["gaussian", "unlike rows", "denormal"],
)
def test_mean_over_keys_of_gaussian_values_is_the_tensor_itself(x):
    draws = DRAWS if examples(100) == 100 else 300
    total, square = torch.zeros(2, 64, dtype=torch.float64), torch.zeros(2, 64, dtype=torch.float64)
    for draw in range(draws):
        error = round_trip(x, "nvfp4-eden", draw.to_bytes(8)).double() - x.double()
        total += error
        square += error.square()

    sigma = (square / draws).sqrt() / draws**0.5
    assert ((total / draws).abs() <= 4.5 * sigma + 2.0**-149).all()  # of 128 values, 4 sigma is few
    assert abs((total / draws).sum()) <= 4 * sigma.square().sum().sqrt() + 128 * 2.0**-149


def test_values_beside_a_far_greater_one_are_biased_as_the_page_says():
    x = gaussian(4, 64)
    x[:, 5] = 100.0

    mean = sum(round_trip(x, "nvfp4-eden", draw.to_bytes(8)).double() for draw in range(200)) / 200

    assert (mean - x).norm() / x.norm() == pytest.approx(0.03, abs=0.006)


@every_codec
@given(st.integers(0, 2**32), st.integers(0, 3000), st.floats(-44, 30), st.sampled_from(Dtype))
@settings(max_examples=examples(100))
def test_what_arrives_is_finite_and_near(name, seed, values, power, dtype):
    kind = TORCH[dtype] if TORCH[dtype].is_floating_point else torch.float32
    x = (gaussian(values, seed=seed).double() * 10.0**power).to(kind)
    x = x.nan_to_num(0.0, 0.0, 0.0)  # of float16, past its greatest

    got = round_trip(x, name, KEY)

    assert (got.shape, got.dtype) == (x.shape, x.dtype)
    assert got.isfinite().all()
    if values:
        bound = 1.4 if name == "nvfp4-eden" else 0.26
        error = (got.double() - x.double()).abs().max()
        least = 2.0**-129 if name == "mxfp4" else 2.0**-148  # half of the smallest value but zero
        assert error <= bound * x.double().abs().max() + least


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
@given(st.integers(0, 2**32))
@settings(max_examples=examples(100))
def test_error_of_a_block_is_a_share_of_its_greatest_value(name, seed):
    block = {"nvfp4": 16, "mxfp4": 32}[name]
    x = gaussian(8, 64, seed=seed)

    error = (round_trip(x, name) - x).view(-1, block).abs().amax(1)

    assert (error <= 0.26 * x.view(-1, block).abs().amax(1)).all()


@every_codec
def test_zeros_arrive_as_zeros(name):
    assert torch.equal(round_trip(torch.zeros(3, 64), name, KEY), torch.zeros(3, 64))
    assert round_trip(torch.zeros(0, 64), name, KEY).shape == (0, 64)


@every_codec
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_what_would_not_stay_finite_is_refused(name, value):
    x = torch.ones(3, 64, dtype=torch.float64)
    x[1, 5] = value

    with pytest.raises(Unencodable, match=f"{name} cannot hold NaN, infinities"):
        encode(x, name, key=KEY)


@every_codec
def test_the_greatest_values_arrive_finite_in_every_dtype(name):
    greatest = BY_NAME[name].greatest
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.full((2, 64), 0.0, dtype=kind)
        x[0, 3] = min(greatest, torch.finfo(kind).max)

        got = round_trip(x, name, KEY)

        assert got.isfinite().all()
        assert (got.double() - x.double()).abs().max() <= 0.26 * x.double().max()


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-eden"])
@pytest.mark.parametrize("scale", [math.nan, math.inf, 0.0, 1e-30, 1e38, -1e38])
def test_a_tensors_scale_that_no_encoder_makes_is_refused(name, scale):
    data = bytearray(encode(gaussian(4, 64), name, 0, key=KEY).data)
    head = 4 * (name == "nvfp4-eden")
    data[head : head + 4] = F32(scale).tobytes()

    with pytest.raises(BadMessage, match=f"{name} scale of a tensor that no encoder makes"):
        restored(name, bytes(data), 4, 64)


@every_codec
@given(st.binary(min_size=26, max_size=26), st.sampled_from([Dtype.FLOAT32, Dtype.FLOAT16]))
@settings(max_examples=examples(300))
def test_any_bytes_are_a_bad_message_or_finite_values(name, data, dtype):
    made = encode(torch.ones(32, dtype=TORCH[dtype]), name, 0, key=KEY)
    place = decoder(made.meta, key=KEY)
    place.buffer[:] = made.data
    head = 4 * (name == "nvfp4-eden")
    room = len(place.buffer) - head
    place.buffer[head:] = data[:room]

    try:
        got = place.finish()
    except BadMessage:
        return
    assert got.isfinite().all()


def test_bytes_of_another_key_are_refused_and_there_is_no_encoding_without_one():
    encoded = encode(torch.ones(64), "nvfp4-eden", 0, key=KEY)

    place = decoder(encoded.meta, key=bytes(8))
    place.buffer[:] = encoded.data
    with pytest.raises(BadMessage, match="nvfp4-eden bytes of another key"):
        place.finish()
    with pytest.raises(ValueError, match="needs a key"):
        encode(torch.ones(64), "nvfp4-eden")


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_rounding_to_nearest_is_for_activations_alone(name):
    assert named(name, TensorUse.ACTIVATION).name == name
    for use in (TensorUse.GRADIENT, TensorUse.AVERAGING, TensorUse.STATE):
        with pytest.raises(Unusable, match=f"{name} is not fit for {str(use.name).lower()}"):
            named(name, use)
    assert named("nvfp4-eden", TensorUse.GRADIENT).name == "nvfp4-eden"
