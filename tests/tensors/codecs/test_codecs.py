"""Codecs: exact where they say so, within their bound where not, and never fooled by a peer."""

import contextlib
import itertools

import pytest
import torch
import zstandard
from core import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.tensors.codecs import exact as byte_planes
from p2pswarm.tensors.codecs import int8
from p2pswarm.tensors.codecs.base import DTYPES, FLOATS, TORCH, WIDE, TensorUse, Unencodable
from p2pswarm.tensors.codecs.meta import INLINE_BYTES_MAX, VALUE_BYTES, Dtype, TensorMeta
from p2pswarm.tensors.codecs.registry import (
    BY_NAME,
    CODECS,
    MESSAGE_INLINE_BYTES,
    EncodedTensor,
    decoder,
    encode,
    encode_all,
    named,
)

EXACT = ("raw", "planes-zstd")
KEY = bytes(range(8))
ROUGH = {"dither6": 0.3, "dither5": 0.6, "dither4": 1.2, "dither3": 2.5, "dither2": 6.0}
ROUGH |= {"nvfp4": 0.1, "nvfp4-eden": 1.0, "mxfp4": 0.1}
"""More than the error of a value among ones; of other codecs it is less."""
HALF_STEP = 0.5 * (1 + 1e-4)  # the rounding of scale and product, in units of a step


def arrive(encoded_tensor: EncodedTensor) -> torch.Tensor:
    """What the receiver makes of a encoded_tensor."""
    place = decoder(encoded_tensor.meta, key=KEY)
    if not encoded_tensor.meta.inline:
        place.buffer[:] = encoded_tensor.data
    return place.finish()


def there(tensor: torch.Tensor, codec: str) -> torch.Tensor:
    return arrive(encode(tensor, codec, key=KEY))


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, NaN and negative zero included."""
    flat = (torch.empty(t.numel(), dtype=t.dtype).copy_(t.reshape(-1)) for t in (a, b))
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(*(t.view(torch.uint8) for t in flat))
    )


SHAPES = st.lists(st.integers(0, 5), max_size=8).map(tuple) | st.tuples(st.integers(0, 3000))
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def tensors(draw):
    """Any bit pattern, in any dtype and shape, at times as a view with strides."""
    dtype = draw(st.sampled_from(list(Dtype)))
    shape = draw(SHAPES)
    values = torch.Size(shape).numel()
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    raw = torch.randint(0, 256, (values * VALUE_BYTES[dtype],), generator=rng, dtype=torch.uint8)
    tensor = raw.view(TORCH[dtype]).reshape(shape)
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        tensor = tensor[..., :: draw(st.integers(1, 3))]
    return tensor


@pytest.mark.parametrize("codec", EXACT)
@given(tensors())
def test_exact_codec_returns_every_bit(codec, tensor):
    assert same_bytes(there(tensor, codec), tensor)


@pytest.mark.parametrize("codec", [c.name for c in CODECS])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 8, (256,), (257,), (2, 3, 5)])
def test_every_codec_keeps_shape_and_dtype(codec, shape):
    for dtype in sorted(BY_NAME[codec].dtypes):
        tensor = torch.ones(shape, dtype=TORCH[dtype])

        got = there(tensor, codec)

        assert torch.allclose(got, tensor, atol=ROUGH.get(codec, 0.0))
        assert (got.shape, got.dtype) == (tensor.shape, tensor.dtype)


def test_raw_tensor_is_sent_from_and_received_into_its_own_memory():
    tensor = torch.arange(24.0).reshape(2, 3, 4)
    encoded_tensor = encode(tensor, "raw", inline_bytes=0)
    place = decoder(encoded_tensor.meta)

    tensor[1, 2, 3] = 99.0
    place.buffer[:] = encoded_tensor.data
    got = place.finish()
    place.buffer[:4] = bytes(4)

    assert got[1, 2, 3] == 99.0
    assert got[0, 0, 0] == 0.0


def test_tensor_that_needs_gradients_is_sent_as_values():
    assert torch.equal(there(torch.ones(3, requires_grad=True), "int8"), torch.ones(3))
    assert torch.equal(there(torch.ones(3, requires_grad=True), "raw"), torch.ones(3))


def test_expanded_and_transposed_tensors_arrive_in_their_order():
    expanded = torch.tensor([[1.0], [2.0]]).expand(2, 3)

    for codec in BY_NAME:
        near = {"rtol": 0.01, "atol": 2 * ROUGH.get(codec, 0.0)}
        assert torch.allclose(there(expanded, codec), expanded, **near)
        assert torch.allclose(there(expanded.t(), codec), expanded.t(), **near)


@pytest.mark.parametrize(("codec", "bits"), [("fp16", 11), ("bf16", 8)])
@given(st.lists(st.floats(-6e4, 6e4), max_size=600), st.sampled_from(sorted(WIDE)))
def test_narrow_float_is_wrong_by_half_a_unit_in_its_last_place(codec, bits, values, dtype):
    tensor = torch.tensor(values, dtype=TORCH[dtype])

    got = there(tensor, codec)

    bound = tensor.abs() * 2.0**-bits * (1 + 1e-6) + 2.0**-25  # the last term for fp16's subnormals
    assert ((got - tensor).abs() <= bound).all()


@pytest.mark.parametrize("codec", ["fp16", "bf16"])
def test_narrow_float_passes_nan_and_infinity(codec):
    tensor = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])

    assert torch.equal(there(tensor, codec).nan_to_num(7.0), tensor.nan_to_num(7.0))
    assert there(torch.full((2,), float("nan")), codec).isnan().all()


@pytest.mark.parametrize(
    ("codec", "value", "dtype"),
    [
        ("fp16", 65505.0, torch.float32),
        ("fp16", -7e4, torch.float64),
        ("bf16", 3.4e38, torch.float32),
        ("bf16", 1e300, torch.float64),
    ],
)
def test_value_that_a_narrow_float_cannot_hold_is_an_error(codec, value, dtype):
    with pytest.raises(Unencodable, match=f"{codec} holds values up to .*: send them raw"):
        encode(torch.tensor([1.0, value], dtype=dtype), codec)
    with pytest.raises(Unencodable, match=f"{codec} holds values up to .*: send them raw"):
        encode(torch.tensor([float("nan"), float("inf"), value], dtype=dtype), codec)


def test_int8_costs_a_byte_a_value_and_a_scale_a_block():
    assert encode(torch.ones(256 * 10), "int8").meta.encoded_bytes == 2560 + 40
    assert encode(torch.ones(257), "int8").meta.encoded_bytes == 257 + 8


def assert_within_half_a_step(tensor, got):
    for begin in range(0, tensor.numel(), 256):
        block, decoded = (t.reshape(-1)[begin : begin + 256].double() for t in (tensor, got))
        step = max(block.abs().amax().item() / 127, int8.SCALE_MIN)
        slack = block.abs() * torch.finfo(got.dtype).eps / 2  # the dtype's own rounding
        assert ((block - decoded).abs() <= HALF_STEP * step + slack).all()


@given(st.lists(FLOAT32, max_size=700))
def test_int8_is_wrong_by_at_most_half_a_step_of_its_block(values):
    tensor = torch.tensor(values)

    got = there(tensor, "int8")

    assert got.isfinite().all()
    assert_within_half_a_step(tensor, got)


@given(st.sampled_from(sorted(FLOATS)), st.integers(1, 2000), st.integers(0, 2**32))
def test_int8_keeps_its_bound_in_every_dtype(dtype, values, seed):
    rng = torch.Generator().manual_seed(seed)
    tensor = (torch.randn(values, generator=rng) * 10).to(TORCH[dtype])

    assert_within_half_a_step(tensor, there(tensor, "int8"))


def test_int8_joins_chunks_and_a_short_block_without_a_seam():
    rng = torch.Generator().manual_seed(0)
    tensor = torch.randn(2 * int8.CHUNK_VALUES + 1000, generator=rng)

    assert_within_half_a_step(tensor, there(tensor, "int8"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 300, 599])
def test_int8_refuses_what_has_no_magnitude(value, at):
    tensor = torch.ones(600)
    tensor[at] = value

    with pytest.raises(Unencodable, match="int8 cannot hold NaN"):
        encode(tensor, "int8")


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 3e36])
def test_int8_scale_that_no_encoder_makes_is_a_broken_protocol(scale):
    encoded_tensor = encode(torch.ones(10), "int8", inline_bytes=0)
    place = decoder(encoded_tensor.meta)
    place.buffer[:] = encoded_tensor.data
    place.buffer[:4] = memoryview(torch.tensor([scale]).numpy()).cast("B")

    with pytest.raises(BadMessage, match="scale"):
        place.finish()


def test_planes_make_smooth_floats_smaller_than_zstd_alone():
    rng = torch.Generator().manual_seed(0)
    tensor = torch.randn(100_000, generator=rng).bfloat16()
    plain = zstandard.ZstdCompressor(1).compress(tensor.view(torch.uint8).numpy().tobytes())

    assert encode(tensor, "planes-zstd").meta.encoded_bytes < 0.9 * len(plain)


def test_planes_unpack_piece_by_piece():
    rng = torch.Generator().manual_seed(0)
    tensor = torch.randn(byte_planes.SCRATCH_BYTES + 77, generator=rng)

    assert same_bytes(there(tensor, "planes-zstd"), tensor)


def unpack(frame: bytes, values: int = 1000) -> torch.Tensor:
    """What we make of any `frame` announced as so many bytes of uint8."""
    meta = TensorMeta(Dtype.UINT8, (values,), BY_NAME["planes-zstd"].code, len(frame))
    return arrive(EncodedTensor(meta, memoryview(frame)))


def zstd(data: bytes, **options) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def windowed(data: bytes, window_log: int) -> bytes:
    options = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=True)
    packer = zstandard.ZstdCompressor(compression_params=options)
    stream = packer.compressobj(size=len(data))
    return stream.compress(data) + stream.flush()


GOOD = zstd(bytes(1000))


def test_good_frame_unpacks():
    assert torch.equal(unpack(GOOD), torch.zeros(1000, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (zstd(bytes(10_000_000)), "10000000 bytes"),
        (zstd(bytes(1001)), "1001 bytes"),
        (zstd(bytes(999)), "999 bytes"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000)), "bytes, 1000"),
        (b"x" * 20, "not a zstd frame"),
        (GOOD[:3], "not a zstd frame"),
        (GOOD[:-1], "early"),
        (GOOD[:-2] + bytes(2), "broken"),
    ],
)
def test_frame_that_lies_is_a_broken_protocol(frame, why):
    with pytest.raises(BadMessage, match=why):
        unpack(frame)


def test_frame_that_asks_for_a_vast_window_is_refused():
    data = bytes(20_000_000)

    with pytest.raises(BadMessage, match="window of 16777216"):
        unpack(windowed(data, 24), len(data))
    assert unpack(windowed(data, 23), len(data)).numel() == len(data)


@settings(max_examples=examples(300))
@given(st.data())
def test_corrupt_frame_gives_a_bad_message_or_a_tensor(data):
    frame = bytearray(zstd(bytes(range(250)) * 4))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(BadMessage):
        assert unpack(bytes(frame)).numel() == 1000


@given(st.sampled_from(CODECS), st.sampled_from(sorted(Dtype)), st.data())
def test_any_bytes_in_the_buffer_give_a_tensor_or_a_bad_message(codec, dtype, data):
    assume(dtype in codec.dtypes)
    sent = encode(torch.zeros(5, dtype=TORCH[dtype]), codec.name, inline_bytes=0, key=KEY)
    place = decoder(sent.meta, key=KEY)
    n = len(place.buffer)
    place.buffer[:] = data.draw(st.binary(min_size=n, max_size=n))

    try:
        got = place.finish()
    except BadMessage:
        return
    assert (got.shape, got.dtype) == ((5,), TORCH[dtype])


def test_small_tensor_rides_in_the_announcement():
    fits = encode(torch.zeros(INLINE_BYTES_MAX, dtype=torch.uint8), "raw")
    past = encode(torch.zeros(INLINE_BYTES_MAX + 1, dtype=torch.uint8), "raw")

    assert len(fits.meta.inline) == INLINE_BYTES_MAX
    assert past.meta.inline == b""


def test_announcement_of_many_stays_within_a_message():
    encoded = encode_all([torch.zeros(1000) for _ in range(20)], "raw")

    inline = [len(p.meta.inline) for p in encoded]
    assert inline == [4000] * 8 + [0] * 12
    assert sum(inline) <= MESSAGE_INLINE_BYTES


@pytest.mark.parametrize(
    ("tensor", "codec"),
    [
        (torch.zeros(1, dtype=torch.complex64), "raw"),
        (torch.zeros(1, dtype=torch.int64), "int8"),
        (torch.zeros(1, dtype=torch.float16), "fp16"),
        (torch.zeros((1,) * 9), "raw"),
    ],
)
def test_tensor_that_a_codec_does_not_take_is_our_own_mistake(tensor, codec):
    with pytest.raises(ValueError, match=r"does not take|rank 9"):
        encode(tensor, codec)


def test_unknown_codec_names_the_known_ones():
    with pytest.raises(Unusable, match="choose one of raw, fp16, bf16, int8, planes-zstd"):
        named("gzip")


def test_lossy_codec_is_refused_where_replicas_must_be_equal():
    with pytest.raises(Unusable, match="int8 is not fit for state: choose raw, planes-zstd"):
        named("int8", TensorUse.STATE)

    for codec, use in itertools.product(EXACT, TensorUse):
        assert named(codec, use).name == codec
    assert named("bf16", TensorUse.GRADIENT).name == "bf16"


def test_codes_and_dtypes_are_told_apart():
    assert len({c.code for c in CODECS}) == len(CODECS) == len(BY_NAME)
    assert set(TORCH) == set(Dtype) == set(VALUE_BYTES)
    for dtype, kind in TORCH.items():
        assert DTYPES[kind] is dtype
        assert torch.empty(0, dtype=kind).element_size() == VALUE_BYTES[dtype]
