"""The key of a digest, made of a share of every member: who tells whom which share.

Nobody may know the key before everybody has every piece. So each member adds a share, and tells it
only then. In a small group each tells all others. In a larger one that would be the square of its
members, though a share has 16 bytes: there all tell one of them, the collector, which sends the
whole list to each. A member finds its own share in the list, or the averaging fails.

The collector changes with each averaging, so one that is lost or lies holds up no second one.

A collector learns the shares later than the bytes of all who told theirs are fixed, like anybody.
It may choose the shares of members that are in league with it, so it may try many keys, but for
each the chance that two different pieces have the same digest is that of any key. If it sends
different lists, the digests differ, because the key is hashed with the tags.

Units:   bytes.
Errors:  BadMessage for a share that is not due, or of another size.
Source:  docs/training.md, "The digest".
"""

import hashlib
from collections.abc import Sequence

from p2pswarm.base.errors import BadMessage

KEY_BYTES = 16  # of a share, and of the key of a digest
TELL_ALL_MAX = 16  # members that tell each other directly: one way less, and at most 240 streams


class KeyShares:
    """The shares of one averaging, as one member or observer learns them."""

    def __init__(self, group: Sequence[bytes], me: bytes, turn: int) -> None:
        """`turn`: a number that all have in common, and that changes with each averaging."""
        self._group = tuple(group)
        self._members = frozenset(group)
        self._me = me
        self._shares: dict[bytes, bytes] = {}
        collected = len(self._group) > TELL_ALL_MAX
        self._collector = self._group[turn % len(self._group)] if collected else None

    @property
    def collects(self) -> bool:
        """Whether it is we who send the list to all."""
        return self._collector == self._me

    @property
    def tells(self) -> tuple[bytes, ...]:
        """The members that are told our share."""
        to = self._group if self._collector is None else (self._collector,)
        return tuple(peer for peer in to if peer != self._me)

    @property
    def tells_observers(self) -> bool:
        """Whether observers are told our share, too; else the collector's list has it."""
        return self._collector is None

    @property
    def whole(self) -> bool:
        """Whether every member's share is here."""
        return len(self._shares) == len(self._group)

    def reveal(self, share: bytes) -> None:
        """Enter our own share; from now on others may know it."""
        self._shares[self._me] = share

    def told(self, sender: bytes, said: bytes) -> bool:
        """Enter what another says; False for a collector's list without the share that we told."""
        if self._collector is None or self.collects:
            self._share_of(sender, said)
            return True
        if sender != self._collector or self.whole:
            raise BadMessage("no share of a key is wanted from you")
        if len(said) != len(self._group) * KEY_BYTES:
            return False
        listed = {
            peer: said[place * KEY_BYTES : (place + 1) * KEY_BYTES]
            for place, peer in enumerate(self._group)
        }
        if self._me in listed and listed[self._me] != self._shares.get(self._me):
            return False
        self._shares = listed
        return True

    @property
    def listed(self) -> bytes:
        """All shares, in the order of the group."""
        return b"".join(self._shares[peer] for peer in self._group)

    @property
    def key(self) -> bytes:
        """The key of the digest, the same for all."""
        return hashlib.blake2b(self.listed, digest_size=KEY_BYTES).digest()

    def _share_of(self, sender: bytes, share: bytes) -> None:
        if sender == self._me or sender not in self._members or sender in self._shares:
            raise BadMessage("no share of a key is wanted from you")
        if len(share) != KEY_BYTES:
            raise BadMessage(f"a share of a key has {KEY_BYTES} bytes")
        self._shares[sender] = share
