"""LockedMemory: page-locked host memory, which a GPU copies from and to at full speed.

Locking pages takes as long as copying them, and stops what the GPU does. So what was locked is
used again and never unlocked, and there is a limit to it: the system cannot move such pages. Where
the system refuses to lock, or the limit is reached, others get pageable memory: slower, and right.

Units:   bytes.
Errors:  none; a refusal is logged.
"""

import logging
from collections import deque
from collections.abc import Callable

from torch import Tensor

from p2pswarm.tensors.codecs.slabs import SLAB_BYTES_MIN, Slabs

LOCKED_BYTES_MAX = 1 << 29  # for one device: four tensors of 64 MiB each way at a time

_log = logging.getLogger(__name__)


class LockedMemory:
    """Leases of locked slabs, up to a limit; several threads may take them at once."""

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
