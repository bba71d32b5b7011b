"""Page-locked memory: used again, never beyond its limit, and never a reason to stop."""

import gc

import pytest
import torch

from p2pswarm.tensors.codecs.host_memory import SLAB_BYTES_MAX, SLAB_BYTES_MIN, LockedMemory


class Locker:
    """A system that locks pages until it refuses."""

    def __init__(self, refuses_after: int = 99) -> None:
        self.locked: list[int] = []
        self._refuses_after = refuses_after

    def __call__(self, size_bytes: int) -> torch.Tensor:
        if len(self.locked) == self._refuses_after:
            raise RuntimeError("CUDA error: out of memory\nand a page of advice")
        self.locked.append(size_bytes)
        return torch.empty(size_bytes, dtype=torch.uint8)


def test_what_was_locked_is_used_again():
    locker = Locker()
    memory = LockedMemory(locker)
    for _ in range(5):
        lease = memory.lease(SLAB_BYTES_MIN - 1)
        assert lease is not None
        assert lease.nbytes == SLAB_BYTES_MIN - 1

        del lease

    assert locker.locked == [SLAB_BYTES_MIN]


def test_no_more_is_locked_than_the_limit_in_use_or_not():
    locker = Locker()
    memory = LockedMemory(locker, bytes_max=5 * SLAB_BYTES_MIN)
    leases = [memory.lease(2 * SLAB_BYTES_MIN) for _ in range(4)]

    assert [lease is None for lease in leases] == [False, False, True, True]
    assert memory.lease(SLAB_BYTES_MIN) is not None
    del leases
    gc.collect()
    again = [memory.lease(2 * SLAB_BYTES_MIN) for _ in range(3)]
    assert [lease is None for lease in again] == [False, False, True]
    assert sum(locker.locked) == 5 * SLAB_BYTES_MIN


@pytest.mark.parametrize("need_bytes", [0, 1, SLAB_BYTES_MIN // 2, SLAB_BYTES_MAX + 1])
def test_very_small_and_very_large_tensors_get_pageable_memory(need_bytes):
    locker = Locker()

    assert LockedMemory(locker).lease(need_bytes) is None
    assert locker.locked == []


def test_a_system_that_refuses_is_asked_no_more_and_what_it_locked_stays_in_use(caplog):
    locker = Locker(refuses_after=1)
    memory = LockedMemory(locker)
    first = memory.lease(SLAB_BYTES_MIN)

    assert memory.lease(SLAB_BYTES_MIN) is None
    assert memory.lease(SLAB_BYTES_MIN) is None
    del first
    gc.collect()
    assert memory.lease(SLAB_BYTES_MIN) is not None
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("slower: CUDA error: out of memory")
