"""Which of the peers that we have met are asked for a reservation, and in which order.

Whoever names itself a relay is believed only as far as we have dialled it: what does not answer us
answers nobody. All who look for relays meet the same few peers first, so each begins with those
whose ids are next to its own; a swarm's relays share its hidden nodes.

Units:   none.
Errors:  none.
Source:  docs/relays.md, "The reserved peer".
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from p2pswarm.ids import Contact, PeerId


@dataclass(frozen=True, slots=True)
class RelayCandidate:
    """A peer that says that it is a relay."""

    relay: Contact
    """With its id, and the address at which we have found it."""
    mapped: bool = False
    """Its router forwards that address: it is at home, on a thin line."""


def chosen(
    candidates: Iterable[RelayCandidate], us: PeerId, held: Collection[PeerId]
) -> list[Contact]:
    """One address of each candidate, best first, without those that hold a reservation of ours."""
    best: dict[PeerId, RelayCandidate] = {}
    for each in candidates:
        peer = each.relay.peer
        if peer is None or peer == us or peer in held:
            continue
        best.setdefault(peer, each)
    ranked = sorted(best.items(), key=lambda one: (one[1].mapped, one[0].distance(us.raw)))
    return [each.relay for _, each in ranked]
