"""Which trainers a server tells that it speaks another version: each manifest's, once an hour.

Who signs a manifest chooses the address that is dialled, so the number of manifests is limited too.

Units:   seconds on the caller's clock.
Errors:  none.
"""

from collections.abc import Sequence

from p2pswarm.base.ids import Contact
from p2pswarm.run.manifest import UnreadableOffer

TELL_AGAIN_S = 3600.0  # a trainer that did not listen is reminded, and hardly notices
MANIFESTS_MAX = 64  # told of in that time: no swarm has so many trainers of an older release


class VersionNotices:
    """Remembers whose trainers have been told."""

    def __init__(self, manifests_max: int = MANIFESTS_MAX) -> None:
        self._max = manifests_max
        self._told_s: dict[UnreadableOffer, float] = {}

    def due(self, found: Sequence[UnreadableOffer], now_s: float) -> list[Contact]:
        """The trainers of `found` to tell now; they count as told from here on."""
        self._told_s = {
            offer: told_s for offer, told_s in self._told_s.items() if now_s < told_s + TELL_AGAIN_S
        }
        fresh = [offer for offer in found if offer not in self._told_s]
        now = fresh[: self._max - len(self._told_s)]
        self._told_s.update(dict.fromkeys(now, now_s))
        return [offer.trainer for offer in now]
