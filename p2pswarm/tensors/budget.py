"""Budget: how much memory peers may make us allocate for tensors that they send.

A tensor is charged when it is announced, before memory is allocated, until the transfer
is over. Memory that the stages keep afterwards has limits of its own.

The default for a peer is 256 MiB, twice the 125 MB that are on the way at 10 Gbit/s and
100 ms. The default for the process is enough for four such peers.

No few peers hold everything: a peer gets more only while it holds at most `FREE_SHARE` times
what is then left free. So five that take all they can leave a tenth to the next one. A peer
that is alone may have all of its share.

Units:   bytes.
Errors:  TooLarge if a tensor can never fit, Busy if it fits when others are done; ValueError
         for our own misuse.
Source:  Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
         switches" (1998).
"""

from p2pswarm.base.errors import Busy, TooLarge
from p2pswarm.base.ids import PeerId

PEER_BYTES = 256 << 20
PROCESS_BYTES = 1 << 30
FREE_SHARE = 2  # n peers that take all they can leave 1 / (2n + 1) of the memory to others
RETRY_AFTER_S = 0.05  # the time that 64 MiB take at 10 Gbit/s


class Budget:
    """The bytes that are promised to peers, limited for each peer and in all."""

    def __init__(self, peer_bytes: int = PEER_BYTES, process_bytes: int = PROCESS_BYTES) -> None:
        if not 0 < peer_bytes <= process_bytes:
            raise ValueError(f"a peer's share of {peer_bytes} bytes out of {process_bytes}")
        self._peer_bytes = peer_bytes
        self._process_bytes = process_bytes
        self._held: dict[PeerId, int] = {}
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that are promised now, to all peers together."""
        return self._held_bytes

    def reserve(self, peer: PeerId, size_bytes: int) -> None:
        """Promise memory to `peer`; call `release` once for every success.

        Raises TooLarge or Busy if the promise is impossible.
        """
        if size_bytes < 0:
            raise ValueError(f"cannot reserve {size_bytes} bytes")
        if size_bytes > self._peer_bytes:
            raise TooLarge(f"{size_bytes} bytes announced, a peer may have {self._peer_bytes}")
        held_bytes = self._held.get(peer, 0)
        mine_bytes = held_bytes + size_bytes
        free_bytes = self._process_bytes - self._held_bytes - size_bytes
        alone = held_bytes == self._held_bytes
        greedy = mine_bytes > FREE_SHARE * free_bytes and not alone
        if size_bytes and (mine_bytes > self._peer_bytes or free_bytes < 0 or greedy):
            raise Busy("no memory for tensors now", RETRY_AFTER_S)
        self._held_bytes += size_bytes
        if mine_bytes:
            self._held[peer] = mine_bytes

    def release(self, peer: PeerId, size_bytes: int) -> None:
        """Take a promise back."""
        left = self._held.get(peer, 0) - size_bytes
        if size_bytes < 0 or left < 0:
            raise ValueError(f"released {size_bytes} bytes that were not held")
        self._held_bytes -= size_bytes
        if left:
            self._held[peer] = left
        else:
            self._held.pop(peer, None)
