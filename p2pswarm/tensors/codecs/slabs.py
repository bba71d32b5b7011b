"""Slabs: host memory in powers of two that is used again once nothing refers to it.

No call gives memory back: a slab is free when the last tensor, view or memoryview of it is gone.

Units:   bytes.
Errors:  none.
"""

import weakref
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

SLAB_BYTES_MIN = 1 << 18  # malloc serves smaller sizes from pages that it has
SLAB_BYTES_MAX = 1 << 28  # the default budget of a peer


class Slabs:
    """Leases of memory; several threads may take them at once."""

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
            made = self._make(slab_bytes)
            if made is None:
                return None
            slab = made
        lease = slab.numpy()  # freed with the last tensor that is made of it
        weakref.finalize(lease, idle.append, slab).atexit = False
        return torch.from_numpy(lease)[:need_bytes]

    def idle_bytes(self) -> int:
        """What is kept and not in use."""
        return sum(size_bytes * len(idle) for size_bytes, idle in self._idle.items())
