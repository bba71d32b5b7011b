"""Host memory for codecs: slabs in powers of two, and page-locked memory for a GPU's copies."""

import logging
import weakref
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

SLAB_BYTES_MIN = 1 << 18  # malloc serves smaller sizes from pages that it has
SLAB_BYTES_MAX = 1 << 28  # the default budget of a peer
LOCKED_BYTES_MAX = 1 << 29  # for one device: four tensors of 64 MiB each way at a time

_log = logging.getLogger(__name__)


class Slabs:
    """Leases of host memory that is used again; several threads may take them at once.

    No call gives memory back: a slab is free when its last tensor, view or memoryview is gone.
    """

    def __init__(self, make: Callable[[int], Tensor | None], keep_bytes: int) -> None:
        """`make` a slab of uint8, or None if there is none; `keep_bytes`: idle, of each size."""
        self._make = make
        self._idle: dict[int, deque[Tensor]] = {}
        size_bytes = SLAB_BYTES_MIN
        while size_bytes <= min(SLAB_BYTES_MAX, keep_bytes):
            # A deque's append and pop are atomic between threads: no lock is needed.
            self._idle[size_bytes] = deque(maxlen=keep_bytes // size_bytes)
            size_bytes *= 2

    def lease(self, need_bytes: int) -> Tensor | None:
        """So many bytes of uint8; None if no slab is so small or so large, or none was made."""
        slab_bytes = 1 << (need_bytes - 1).bit_length()
        idle = self._idle.get(slab_bytes)
        if idle is None:
            return None
        try:
            slab = idle.pop()
        except IndexError:
            if (made := self._make(slab_bytes)) is None:
                return None
            slab = made
        lease = slab.numpy()  # freed with the last tensor that is made of it
        weakref.finalize(lease, idle.append, slab).atexit = False
        return torch.from_numpy(lease)[:need_bytes]


class LockedMemory:
    """Leases of page-locked slabs, which a GPU copies from and to at full speed, up to a limit.

    Locking pages takes as long as copying them, and stops what the GPU does. So what was locked is
    used again and never unlocked, and it is limited: the system cannot move such pages. Where it
    refuses to lock, or at the limit, others get pageable memory: slower, and right. Several threads
    may take leases at once.
    """

    def __init__(self, lock: Callable[[int], Tensor], bytes_max: int = LOCKED_BYTES_MAX) -> None:
        """`lock` makes a locked tensor of so many bytes, or raises RuntimeError."""
        self._lock = lock
        # One for each slab of the smallest size. A deque's pop is atomic: no lock is needed.
        self._permits: deque[None] = deque([None] * (bytes_max // SLAB_BYTES_MIN))
        self._slabs = Slabs(self._made, bytes_max)  # so many are never idle that one is let go

    def lease(self, need_bytes: int) -> Tensor | None:
        """So many bytes of uint8, or None: take pageable memory."""
        return self._slabs.lease(need_bytes)

    def _made(self, slab_bytes: int) -> Tensor | None:
        wanted = slab_bytes // SLAB_BYTES_MIN
        taken = 0
        while taken < wanted:
            try:
                self._permits.pop()
            except IndexError:
                self._permits.extend([None] * taken)
                return None
            taken += 1
        try:
            return self._lock(slab_bytes)
        except RuntimeError as error:
            self._permits.clear()  # what is locked stays in use; no more is asked for
            reason = str(error).partition("\n")[0]
            _log.warning("no more page-locked memory, copies to the device are slower: %s", reason)
            return None
