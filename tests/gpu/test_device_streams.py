"""Codecs beside computing on a real GPU: the same bits, memory that is used again, no waiting."""

import asyncio
import functools

import pytest
import torch

from p2pswarm.tensors.codecs.host_memory import SLAB_BYTES_MIN
from p2pswarm.tensors.codecs.meta import Dtype
from p2pswarm.tensors.codecs.registry import CODECS, TensorToEncode, decoder, encode, encode_bundle
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPE = (64, 1 << 14)  # 4 MiB of float32
KEY = bytes(range(8))
BUSY_CYCLES = 500_000_000  # some tenths of a second
FLOAT_CODECS = [codec for codec in CODECS if Dtype.FLOAT32 in codec.dtypes]


def numbered(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def pool_on_gpu() -> TensorPool:
    return TensorPool(torch.device("cuda"))


def sent(tensor, codec, pool):
    """As a push encodes it."""
    todo = [TensorToEncode(tensor, codec, KEY)]
    return pool.streams.aside(functools.partial(encode_bundle, todo, pool))[0]


def received(encoded, pool):
    """As a push decodes it."""
    place = decoder(encoded.meta, pool, KEY)
    place.buffer[:] = encoded.data
    return pool.streams.decoded(place.finish)


def plainly(encoded):
    place = decoder(encoded.meta, key=KEY)
    place.buffer[:] = encoded.data
    return place.finish()


@pytest.mark.parametrize("codec", FLOAT_CODECS, ids=lambda c: c.name)
def test_a_codec_beside_a_busy_gpu_makes_the_bits_of_a_cpu_and_does_not_wait_for_it(codec):
    pool, here = pool_on_gpu(), numbered(0)
    there = here.cuda()
    received(sent(there, codec.name, pool), pool)  # compiles kernels, allocates
    torch.cuda.synchronize()

    torch.cuda._sleep(BUSY_CYCLES)
    encoded = sent(there, codec.name, pool)
    got = received(encoded, pool)
    busy = not torch.cuda.default_stream().query()

    assert busy
    assert bytes(encoded.data) == bytes(encode(here, codec.name, inline_bytes=0, key=KEY).data)
    assert torch.equal(got.cpu(), plainly(encoded))


@pytest.mark.parametrize("codec", FLOAT_CODECS, ids=lambda c: c.name)
def test_memory_of_a_tensor_that_computing_still_reads_is_not_written_by_the_next(codec):
    """The compute thread lets go of each tensor long before the kernels that read it have begun."""
    pool = pool_on_gpu()
    encoded = [encode(numbered(seed), codec.name, inline_bytes=0, key=KEY) for seed in range(8)]
    expected = [plainly(each).double().sum().item() for each in encoded]
    for _ in range(10):
        torch.cuda._sleep(BUSY_CYCLES // 10)
        sums = []
        for each in encoded:
            x = received(each, pool)
            sums.append(x.double().sum())
            del x

        assert [each.item() for each in sums] == pytest.approx(expected, rel=1e-9)


async def test_many_threads_encode_decode_and_compute_without_a_wrong_bit():
    pool = pool_on_gpu()

    def work(seed: int) -> bool:
        codec = FLOAT_CODECS[seed % len(FLOAT_CODECS)].name
        right = True
        for turn in range(30):
            first = encode(numbered(100 * seed + turn), codec, inline_bytes=0, key=KEY)
            x = received(first, pool)
            y = x * 2.0  # on the default stream, as a compute call
            z = x + y
            del x
            torch.cuda.current_stream().synchronize()  # a compute call waits at its end
            again = sent(z, "raw", pool)
            del y, z
            right = right and torch.equal(plainly(again), plainly(first) * 2.0 + plainly(first))
        return right

    assert all(await asyncio.gather(*(asyncio.to_thread(work, seed) for seed in range(8))))


def test_what_goes_to_the_gpu_passes_through_page_locked_memory():
    pool = pool_on_gpu()

    assert pool.way((SLAB_BYTES_MIN,), torch.uint8).is_pinned()
    assert not pool.host((SLAB_BYTES_MIN,), torch.uint8).is_pinned()
