"""Sums and reduced gradients in torch memory: digests, norms, where bytes land."""

import math

import pytest
import torch

from p2pswarm.allreduce.plan import Span
from p2pswarm.compute.torch_sums import HASHED, GradientMemory, TorchSums
from p2pswarm.tensors.codecs.registry import encode

KEY = b"k" * 16
LENGTH = HASHED + 7_000
CUT = (Span(0, 10_000), Span(10_000, LENGTH))


def numbers(seed=1, dtype=torch.float32):
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def reduced(cut=CUT, value=None):
    sums = TorchSums(numbers() if value is None else value, "raw")
    for span in cut:
        sums.reduce(span, [None])
    return sums


def test_the_digest_is_of_the_bytes_however_they_came():
    one, other = reduced(), TorchSums(torch.zeros(LENGTH), "raw")
    for span in reversed(CUT):
        other.place(span, numbers()[span.start : span.stop])

    assert one.outcome(KEY) == other.outcome(KEY)


@pytest.mark.parametrize("place", [0, HASHED - 1, HASHED, LENGTH - 1])
def test_another_number_anywhere_gives_another_digest(place):
    value = numbers()
    value[place] += 1.0

    assert reduced(value=value).outcome(KEY).digest != reduced().outcome(KEY).digest


def test_blocks_that_change_places_give_another_digest():
    turned = numbers().roll(HASHED)

    assert reduced(value=turned).outcome(KEY).digest != reduced().outcome(KEY).digest


def test_another_key_gives_another_digest_and_the_same_norm():
    one = reduced()

    assert one.outcome(KEY).digest != one.outcome(b"x" * 16).digest
    assert one.outcome(KEY).squared_norm == one.outcome(b"x" * 16).squared_norm


def test_a_norm_that_is_no_float_is_none():
    huge = torch.full((LENGTH,), 1e152, dtype=torch.float64)

    assert math.isfinite(reduced(value=huge.sqrt()).outcome(KEY).squared_norm)
    assert reduced(value=huge * 100).outcome(KEY).squared_norm is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_raw_bytes_land_in_their_place(dtype):
    sums, span = TorchSums(numbers(dtype=dtype), "raw"), CUT[1]
    shard = encode(numbers(2, dtype)[span.start : span.stop], "raw")
    landing = sums.landing(span, shard.meta)
    landing[:] = shard.data
    sums.place(span, None)

    assert torch.equal(sums.reduced_N[span.start :], numbers(2, dtype)[span.start :])


@pytest.mark.parametrize(
    "shard",
    [
        encode(numbers()[:10_000], "bf16"),
        encode(numbers()[:9_999], "raw"),
        encode(numbers(dtype=torch.float64)[:10_000], "raw"),
        encode(numbers()[:10_000], "raw", inline_bytes=1 << 16),
    ],
)
def test_what_is_encoded_inline_or_of_another_kind_does_not_land(shard):
    assert TorchSums(numbers(), "raw").landing(CUT[0], shard.meta) is None


def test_memory_is_used_again_once_nothing_refers_to_it():
    memory = GradientMemory(numbers())
    first = memory.take()
    where, view = first.data_ptr(), memoryview(first.numpy())
    del first
    while_sent = memory.take()
    del view
    again = memory.take()

    assert while_sent.data_ptr() != where
    assert again.data_ptr() == where
