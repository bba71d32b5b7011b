"""ObservedAddresses: where relays have seen our ports lately, and what that tells of our NAT.

Source:  docs/punching.md; RFC 5382 section 5 for how long a router remembers (4 minutes at least).
"""

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.net.endpoint.preface import Sighting
from p2pswarm.net.os.local_network import family_of

FRESH_S = 90.0
AGAIN_S = 60.0
USED_S = 600.0  # twice what a router remembers of a port that was used
SIGHTINGS_MAX = 64
USED_MAX = 4096


class ObservedAddresses:
    """The addresses at which relays have seen the ports of one node.

    It also knows with whom our port was used lately: kernels keep a pair of ports from being used
    again for a minute, and routers for longer.

    It holds SIGHTINGS_MAX sightings and USED_MAX peers; the oldest make way.
    """

    def __init__(self) -> None:
        self._seen: RecentItems[tuple[Address, int], tuple[Sighting, float]]
        self._seen = RecentItems(SIGHTINGS_MAX)
        self._used: RecentItems[PeerId, float] = RecentItems(USED_MAX)

    def on_observation(self, relay: Address, port: int, sighting: Sighting, now_s: float) -> None:
        """A relay saw our port now."""
        self._seen[relay, port] = sighting, now_s

    def forget(self, port: int) -> None:
        """A port is ours no longer."""
        for key in [key for key in self._seen if key[1] == port]:
            del self._seen[key]

    def fresh(self, relay: Address, port: int, now_s: float) -> Sighting | None:
        """Return what a relay saw of a port a moment ago."""
        sighting, at_s = self._seen.get((relay, port), (None, 0.0))
        return sighting if sighting is not None and now_s - at_s < FRESH_S else None

    def seen(self, port: int, now_s: float, relay: Address | None = None) -> list[Sighting]:
        """Return what was seen of a port a moment ago, by `relay` first: it knows its own seals."""
        found = [
            (at_relay == relay, at_s, sighting)
            for (at_relay, at), (sighting, at_s) in self._seen.items()
            if at == port and now_s - at_s < FRESH_S
        ]
        return [each[2] for each in sorted(found, key=lambda each: each[:2], reverse=True)]

    def hard(self, port: int, now_s: float) -> bool:
        """Return whether two hosts saw one port at different addresses: each gets another."""
        by_family: dict[int, dict[str, Address]] = {}
        for (relay, at), (sighting, at_s) in self._seen.items():
            if at == port and now_s - at_s < FRESH_S:
                family = family_of(sighting.address.host)
                by_family.setdefault(family, {})[relay.host] = sighting.address
        return any(len(set(hosts.values())) > 1 for hosts in by_family.values())

    def use(self, peer: PeerId, now_s: float) -> bool:
        """Take our port for an attempt with a peer; whether it was free for that."""
        at_s = self._used.get(peer)
        self._used[peer] = now_s
        return at_s is None or now_s - at_s >= USED_S
