"""Sums and reduced gradients in torch memory: digests, norms, where bytes land."""

import math

import pytest
import torch

from p2pswarm.models.compute.torch_sums import HASHED, GradientMemory, TorchSums
from p2pswarm.run.averaging.shards import Span, cut_at, pieces
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


@pytest.mark.parametrize("place", [(0, 900), (700, 1_500), (LENGTH - 800, LENGTH)])
def test_a_tied_tensor_and_the_rest_fill_one_reduced_gradient(place):
    tied = Span(*place)
    sums = TorchSums(numbers(), "raw", tied=tied)
    rest, segment = sums.apart()
    for part in (rest, segment):
        for piece in cut_at(pieces(part.length, 3, piece=1_000), part.cut):
            part.reduce(piece.span, [None])

    assert (rest.length, segment.length) == (LENGTH - tied.length, tied.length)
    assert (rest.cut, segment.cut) == (tied.start, 0)
    assert torch.equal(sums.reduced_N, numbers())
    whole = rest.outcome(KEY).squared_norm + segment.outcome(KEY).squared_norm
    assert whole == pytest.approx(reduced().outcome(KEY).squared_norm, rel=1e-12)


@pytest.mark.parametrize("at", [0, 699, 700, 1_499, 1_500, LENGTH - 1])
def test_each_digest_is_of_its_own_part(at):
    def digests(value):
        parts = TorchSums(value, "raw", tied=Span(700, 1_500)).apart()
        for part in parts:
            for piece in cut_at(pieces(part.length, 1), part.cut):
                part.reduce(piece.span, [None])
        return [part.outcome(KEY).digest for part in parts]

    value = numbers()
    value[at] += 1.0
    (rest, tied), (other, same) = digests(numbers()), digests(value)

    assert (rest != other, tied != same) == ((False, True) if 700 <= at < 1_500 else (True, False))


def test_without_a_tied_tensor_there_is_one_averaging():
    assert TorchSums(numbers(), "raw").apart() is None
    assert TorchSums(numbers(), "raw").cut == 0
