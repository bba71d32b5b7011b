"""The codec of sums on a grid: every bit arrives, in as many bits as the whole numbers have."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs.int_grid import BLOCK, CHUNK_BLOCKS
from p2pswarm.tensors.codecs.registry import decoder, encode

FLOATS = st.sampled_from([torch.float32, torch.float64])


def there(tensor):
    encoded = encode(tensor, "int-grid", -1)
    place = decoder(encoded.meta)
    place.buffer[:] = encoded.data
    return place.finish(), encoded.data[0]


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def on_a_grid(length, spread, dtype, seed, powers=(-14,)):
    """Whole numbers around zero, times a power of two for each block."""
    rng = torch.Generator().manual_seed(seed)
    whole = (torch.randn(length, generator=rng) * spread).round()
    of_block = torch.tensor(powers)[torch.arange(length) // BLOCK % len(powers)]
    return (whole.double() * 2.0 ** of_block.double()).to(dtype) + 0.0


@given(
    st.integers(0, 3 * BLOCK + 1),
    st.sampled_from([0.0, 0.5, 20.0, 3e3, 2e5, 2e6]),
    FLOATS,
    st.integers(0, 2**32),
    st.lists(st.integers(-80, 60), min_size=1, max_size=4),
)
def test_whole_multiples_arrive_in_every_bit_and_as_whole_numbers(n, spread, dtype, seed, powers):
    tensor = on_a_grid(n, spread, dtype, seed, powers)

    found, planes = there(tensor)

    assert same_bits(found, tensor)
    assert 1 <= planes <= 4


@pytest.mark.parametrize(
    "value", [-0.0, math.nan, math.inf, -math.inf, 1e-45, 2.0**-126, 2.0**127, 3.4e38, math.pi]
)
def test_a_value_of_another_kind_arrives_in_every_bit_too(value):
    tensor = on_a_grid(700, 20.0, torch.float32, 1)
    tensor[300] = value

    found, _ = there(tensor)

    assert same_bits(found, tensor)


@given(st.integers(-149, 127), st.integers(-149, 127), st.integers(0, BLOCK - 1), FLOATS)
@example(100, -100, 1, torch.float32)
@example(100, -1064, 1, torch.float64)
def test_two_values_of_a_block_arrive_however_far_apart_they_are(power, other, place, dtype):
    tensor = torch.zeros(BLOCK, dtype=dtype)
    tensor[0], tensor[place] = 2.0**power, -(2.0**other)

    assert same_bits(there(tensor)[0], tensor)


@given(st.integers(0, 700), FLOATS, st.integers(0, 2**32))
def test_any_bits_arrive(n, dtype, seed):
    rng = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (n * dtype.itemsize,), generator=rng, dtype=torch.uint8)

    assert same_bits(there(raw.view(dtype))[0], raw.view(dtype))


def test_chunks_join_without_a_seam():
    tensor = on_a_grid(CHUNK_BLOCKS * BLOCK + 300, 20.0, torch.float32, 2, (-14, -20, -3))

    assert same_bits(there(tensor)[0], tensor)


def test_a_gaussian_of_eight_steps_takes_less_than_six_bits():
    tensor = on_a_grid(1 << 18, 8.0, torch.float32, 3)

    encoded = encode(tensor, "int-grid", -1)

    assert len(encoded.data) * 8 < 5.3 * tensor.numel()  # its entropy is 5.05


@pytest.mark.parametrize(("byte", "why"), [(5, "5 planes"), (0, "bytes"), (2, "bytes")])
def test_another_number_of_planes_is_a_broken_protocol(byte, why):
    encoded = encode(on_a_grid(600, 8.0, torch.float32, 4), "int-grid", -1)
    place = decoder(encoded.meta)
    place.buffer[:] = encoded.data
    place.buffer[0] = byte

    with pytest.raises(BadMessage, match=why):
        place.finish()
