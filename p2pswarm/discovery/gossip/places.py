"""Places: who has a place in a directory that is full, and how many places a network may have.

Ids are free, and what a card says of addresses is a claim. So records are counted by the network
that they name. Who was met, by an exchange that we began ourselves, keeps its place.

Units:   counts of records.
Errors:  none.
Source:  docs/directory.md, "What a liar can do".
"""

from functools import lru_cache

from p2pswarm.discovery.gossip.record import PeerRecord
from p2pswarm.net.os.addresses import NAMES, Scope, address_groups, scope_of

PLACES_MAX = 4096  # as many members as a run has; about 4 MB
PER_NEAR_NET = 64  # of one public /24 (IPv6: /48): a lab, or a rack of spot instances
PER_WIDE_NET = 512  # of one public /16 (IPv6: /32): a cloud's region
SEEN_HOSTS = 4096
NOWHERE = "nowhere"  # peers that only dial; they count as one wide network


class Places:
    """The places of one directory, by the start of each peer's id."""

    def __init__(self, places: int = PLACES_MAX) -> None:
        self._most = places
        self._networks: dict[bytes, tuple[str, str]] = {}
        self._near: dict[str, int] = {}
        self._wide: dict[str, int] = {}
        self._unmet: dict[str, dict[bytes, None]] = {}
        """Those that were not met, by their wide network; who has come first stands first."""
        self._lost: dict[bytes, None] = {}
        """Those whose records have died; who was lost first stands first."""

    def __len__(self) -> int:
        return len(self._networks)

    def enter(self, record: PeerRecord) -> tuple[bool, bytes | None]:
        """Give a newcomer a place, if it may have one; who makes way for it, if somebody does."""
        near, wide = networks(host_of(record))
        if near and self._near.get(near, 0) >= PER_NEAR_NET:
            return False, None
        if near and self._wide.get(wide, 0) >= PER_WIDE_NET:
            return False, None
        victim = None
        if len(self._networks) >= self._most:
            victim = self._victim(wide)
            if victim is None:
                return False, None
            self.leave(victim)
        prefix = record.prefix
        self._networks[prefix] = near, wide
        self._near[near] = self._near.get(near, 0) + 1
        self._wide[wide] = self._wide.get(wide, 0) + 1
        self._unmet.setdefault(wide, {})[prefix] = None
        return True, victim

    def leave(self, prefix: bytes) -> None:
        """Take a place back."""
        near, wide = self._networks.pop(prefix)
        _take_one(self._near, near)
        _take_one(self._wide, wide)
        self._drop_unmet(prefix, wide)
        self._lost.pop(prefix, None)

    def met(self, prefix: bytes) -> None:
        """Note that we have reached a peer ourselves."""
        if prefix in self._networks:
            self._drop_unmet(prefix, self._networks[prefix][1])

    def was_met(self, prefix: bytes) -> bool:
        """Whether we have reached a peer ourselves."""
        here = self._networks.get(prefix)
        return here is not None and prefix not in self._unmet.get(here[1], {})

    def lost(self, prefix: bytes) -> None:
        """Note that a record has died."""
        self._lost[prefix] = None

    def back(self, prefix: bytes) -> None:
        """Note that a record counts again."""
        self._lost.pop(prefix, None)

    def _victim(self, newcomers: str) -> bytes | None:
        """Who makes way for a newcomer of a network; None if it has to stay outside."""
        largest = max(self._unmet, key=lambda wide: (self._wide[wide], wide), default=None)
        if largest is not None and self._wide[largest] > self._wide.get(newcomers, 0):
            return next(iter(self._unmet[largest]))
        return next(iter(self._lost), None)

    def _drop_unmet(self, prefix: bytes, wide: str) -> None:
        unmet = self._unmet.get(wide)
        if unmet is not None and prefix in unmet:
            del unmet[prefix]
            if not unmet:
                del self._unmet[wide]


def host_of(record: PeerRecord) -> str:
    """The host that a record names first, or its relay's; empty for who only dials."""
    named = (*record.card.direct, *(relay.at for relay in record.card.relays))
    return named[0].host if named else ""


@lru_cache(maxsize=SEEN_HOSTS)
def networks(host: str) -> tuple[str, str]:
    """The small and the wide network of a host; no small one where there is no limit.

    Private networks have none: a lab is behind one address. A name counts by its last two labels,
    because their owner owns all names below.
    """
    if not host:
        return NOWHERE, NOWHERE
    groups = address_groups(host)
    if groups[0] == NAMES:
        domain = ".".join(host.lower().rstrip(".").split(".")[-2:])
        return (domain, domain) if "." in domain else ("", host)
    near, wide = groups[2], groups[1]
    return (near, wide) if scope_of(host) is Scope.PUBLIC else ("", wide)


def _take_one(counts: dict[str, int], key: str) -> None:
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
