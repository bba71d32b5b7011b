"""Memory that is used again: when, and never while anybody looks at it."""

import asyncio
import gc

import pytest
import torch

from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.codecs.device_streams import DeviceStreams, StreamDevice
from p2pswarm.tensors.codecs.host_memory import SLAB_BYTES_MAX, SLAB_BYTES_MIN, LockedMemory
from p2pswarm.tensors.codecs.tensor_pool import FRESH, TensorPool

VALUES = SLAB_BYTES_MIN // 4


def place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def idle_bytes(pool: TensorPool) -> int:
    return sum(size_bytes * len(idle) for size_bytes, idle in pool._slabs._idle.items())


def test_memory_of_a_tensor_that_is_gone_serves_the_next():
    pool = TensorPool()
    first = pool.host((VALUES,), torch.float32)
    at = place(first)
    del first

    again = pool.home((VALUES // 2 + 1, 2), torch.bfloat16)

    assert (place(again), again.shape, again.dtype) == (at, (VALUES // 2 + 1, 2), torch.bfloat16)


def test_tensor_of_another_size_gets_memory_of_its_own():
    pool = TensorPool()
    small = pool.host((VALUES,), torch.float32)
    at = place(small)
    del small

    assert place(pool.host((VALUES + 1,), torch.float32)) != at


@pytest.mark.parametrize("keep", [lambda t: t[5:9], bytes_of, lambda t: t.view(torch.int32)])
def test_memory_is_not_used_again_while_a_view_of_it_lives(keep):
    pool = TensorPool()
    first = pool.host((VALUES,), torch.float32).fill_(7.0)
    at, view = place(first), keep(first)
    del first

    other = pool.host((VALUES,), torch.float32).zero_()

    assert place(other) != at
    assert bytes(view)[:4] if isinstance(view, memoryview) else view[0] != 0
    del view
    gc.collect()
    assert place(pool.host((VALUES,), torch.float32)) == at


def test_graph_of_autograd_holds_its_memory():
    pool = TensorPool()
    x = pool.host((VALUES,), torch.float32).fill_(3.0).requires_grad_()
    at, y = place(x), (x * x).sum()
    del x

    assert place(pool.host((VALUES,), torch.float32)) != at
    y.backward()


def test_idle_memory_is_bounded():
    pool = TensorPool(keep_bytes=2 * SLAB_BYTES_MIN)
    tensors = [pool.host((VALUES,), torch.float32) for _ in range(5)]
    places = {place(t) for t in tensors}
    del tensors

    again = [pool.host((VALUES,), torch.float32) for _ in range(5)]

    assert len({place(t) for t in again} & places) >= 2
    assert idle_bytes(pool) == 0
    del again
    assert idle_bytes(pool) == 2 * SLAB_BYTES_MIN


@pytest.mark.parametrize("size_bytes", [0, 1, SLAB_BYTES_MIN // 2, SLAB_BYTES_MAX + 1])
def test_very_small_and_very_large_tensors_are_not_kept(size_bytes):
    pool = TensorPool(keep_bytes=SLAB_BYTES_MAX * 2)

    assert pool.host((size_bytes,), torch.uint8).numel() == size_bytes

    assert idle_bytes(pool) == 0


def test_fresh_memory_keeps_nothing():
    FRESH.host((VALUES,), torch.float32)

    assert idle_bytes(FRESH) == 0


async def test_threads_share_it():
    pool = TensorPool()

    def churn(seed: int) -> bool:
        right = True
        for i in range(200):
            mine = pool.host((VALUES,), torch.float32)
            mine[:8] = seed * 1000 + i
            right = right and bool((mine[:8] == seed * 1000 + i).all())
        return right

    assert all(await asyncio.gather(*(asyncio.to_thread(churn, seed) for seed in range(4))))


def test_tensor_of_another_device_is_brought_to_the_host():
    meta = torch.device("meta")
    pool = TensorPool(meta)

    assert pool.host((3,), torch.float32).device.type == "cpu"
    assert pool.way((3,), torch.float32).device.type == "cpu"
    assert pool.home((3,), torch.float32).device == meta
    assert pool.on_device(torch.ones(3)).device == meta
    assert pool.beside(torch.empty(3, device=meta), (2,), torch.float32).device == meta
    assert pool.beside(torch.empty(3), (2,), torch.float32).device.type == "cpu"
    with pytest.raises(NotImplementedError):  # a meta tensor has no bytes to bring
        pool.on_host(torch.empty(3, device=meta))


def test_what_goes_to_a_device_passes_through_locked_memory_while_there_is_some():
    made: list[torch.Tensor] = []

    def lock(size_bytes: int) -> torch.Tensor:
        made.append(torch.empty(size_bytes, dtype=torch.uint8))
        return made[-1]

    streams = DeviceStreams(StreamDevice(apart=True), LockedMemory(lock, SLAB_BYTES_MIN))
    pool = TensorPool(torch.device("meta"), streams=streams)

    first, second = (pool.way((VALUES,), torch.float32) for _ in range(2))

    assert place(first) == place(made[0])
    assert place(second) != place(made[0])
    assert place(pool.host((VALUES,), torch.float32)) != place(made[0])
    assert (second.shape, second.dtype) == ((VALUES,), torch.float32)
