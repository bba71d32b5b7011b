"""How many bytes peers may make us set aside for tensors on their way in.

A tensor is charged when it is announced, before memory is touched, until the receiver
is done with the transfer. What the stages keep afterwards has limits of its own.

Units:   bytes.
Errors:  TooLarge if it can never fit, Busy if it fits once others are done.
Source:  10 Gbit/s times 100 ms are 125 MB on the way: 256 MiB a peer are twice that, and a process
         has room for four such peers.
"""

from p2pswarm.errors import Busy, TooLarge
from p2pswarm.ids import PeerId

PEER_BYTES = 256 << 20
PROCESS_BYTES = 1 << 30
RETRY_AFTER_S = 0.05  # the time that 64 MiB take at 10 Gbit/s


class Budget:
    """Bytes promised to peers: no peer may hold all of it unless it is set so."""

    def __init__(self, peer_bytes: int = PEER_BYTES, process_bytes: int = PROCESS_BYTES) -> None:
        if not 0 < peer_bytes <= process_bytes:
            raise ValueError(f"a peer's share of {peer_bytes} bytes out of {process_bytes}")
        self._peer_bytes = peer_bytes
        self._process_bytes = process_bytes
        self._held: dict[PeerId, int] = {}

    @property
    def held_bytes(self) -> int:
        """The bytes that are promised at present, to all peers together."""
        return sum(self._held.values())

    def reserve(self, peer: PeerId, size_bytes: int) -> None:
        """Promise memory to `peer`; every success is to be paired with one `release`."""
        if size_bytes < 0:
            raise ValueError(f"cannot reserve {size_bytes} bytes")
        if size_bytes > self._peer_bytes:
            raise TooLarge(f"{size_bytes} bytes announced, a peer may have {self._peer_bytes}")
        mine = self._held.get(peer, 0) + size_bytes
        if mine > self._peer_bytes or self.held_bytes + size_bytes > self._process_bytes:
            raise Busy("no memory for tensors now", RETRY_AFTER_S)
        if mine:
            self._held[peer] = mine

    def release(self, peer: PeerId, size_bytes: int) -> None:
        """Take a promise back."""
        left = self._held.get(peer, 0) - size_bytes
        if size_bytes < 0 or left < 0:
            raise ValueError(f"released {size_bytes} bytes that were not held")
        if left:
            self._held[peer] = left
        else:
            self._held.pop(peer, None)
