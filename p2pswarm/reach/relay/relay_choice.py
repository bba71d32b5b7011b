"""Which of the peers that we have met are asked for a reservation, and in which order.

Whoever names itself a relay is believed only as far as we have dialled it: what does not answer us
answers nobody. The nearest come first, by the pings of the links to them: whatever goes through a
relay goes there and back. All who look for relays meet the same few peers first, so of those that
are about as near each begins with those whose ids are next to its own; a swarm's relays share its
hidden nodes.

Units:   seconds.
Errors:  none.
Source:  docs/relays.md, "The reserved peer".
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import ceil, log2

from p2pswarm.base.ids import Contact, PeerId

NEAR_S = 0.01  # in the same town: a millisecond more or less does not matter
UNKNOWN_S = 0.16  # what is assumed where no link tells: on the same continent, or the next


@dataclass(frozen=True, slots=True)
class RelayCandidate:
    """A peer that says that it is a relay."""

    relay: Contact
    """With its id, and the address at which we have found it."""
    mapped: bool = False
    """Its router forwards that address: it is at home, on a thin line."""
    rtt_s: float = 0.0
    """The round trip of a link to it; 0 if that is not known."""


def chosen(
    candidates: Iterable[RelayCandidate], us: PeerId, held: Collection[PeerId]
) -> list[Contact]:
    """One address of each candidate, best first, without those that hold a reservation of ours."""
    best: dict[PeerId, RelayCandidate] = {}
    for each in candidates:
        peer = each.relay.peer
        if peer is None or peer == us or peer in held:
            continue
        known = best.get(peer)
        if known is None or (each.rtt_s and not known.rtt_s):
            best[peer] = each

    def rank(one: tuple[PeerId, RelayCandidate]) -> tuple[bool, int, int]:
        peer, each = one
        return each.mapped, distance_class(each.rtt_s), peer.distance(us.raw)

    return [each.relay for _, each in sorted(best.items(), key=rank)]


def distance_class(rtt_s: float) -> int:
    """How far a round trip leads, in doublings: two that differ by less count as equally far."""
    return max(0, ceil(log2((rtt_s or UNKNOWN_S) / NEAR_S)))
