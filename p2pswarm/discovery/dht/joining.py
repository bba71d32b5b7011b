"""Joining the DHT through seeds: what a greeting returns, and when joining is over.

All seeds are greeted at once, and one answer is enough, so a dead seed costs no time. A
seed may be this node itself, under an address that it did not know.

Units:   none.
Errors:  BadMessage for a reply other than `Identified`; NoRoute if no seed answers.
Source:  Maymounkov and Mazieres, "Kademlia" (2002), 2.3.
"""

from collections.abc import Sequence
from enum import Enum, auto

from p2pswarm.base.errors import BadMessage, NoRoute
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.hearsay import Hearsay
from p2pswarm.discovery.dht.messages import Identified
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.net.os.addresses import believable, expected_of
from p2pswarm.net.wire.message import Message


class Greeting(Enum):
    """How a seed answered."""

    ANSWERED = auto()
    SILENT = auto()
    """No answer came, or none that could be used."""
    OURSELVES = auto()
    """The seed is this node."""


class Joining:
    """Follows one round of greetings to its end."""

    def __init__(self, greeted: Sequence[Contact]) -> None:
        self._left = len(greeted)
        self._silent: list[Contact] = []
        self._joined = False

    def greeted(self, seed: Contact, greeting: Greeting) -> None:
        """Note how one of the seeds answered."""
        self._left -= 1
        if greeting is Greeting.ANSWERED:
            self._joined = True
        elif greeting is Greeting.SILENT:
            self._silent.append(seed)

    @property
    def over(self) -> bool:
        """Whether one seed has answered, or none will."""
        return self._joined or self._left <= 0

    @property
    def failure(self) -> NoRoute | None:
        """Why joining failed, or None. It is no failure if the only seed is this node."""
        if not self.over or self._joined or not self._silent:
            return None
        addresses = ", ".join(str(seed.address) for seed in self._silent)
        return NoRoute(f"no answer from {addresses}: is a node running and reachable there?")


def met_through(seed: Contact, reply: Message, hearsay: Hearsay) -> list[Contact]:
    """The contact of a greeted seed, and then the servers close to us that it knows."""
    if not isinstance(reply, Identified):
        raise BadMessage(f"{type(reply).__name__} does not answer Identify")
    least = expected_of(seed.address.host)
    named = [
        each for each in hearsay.named(reply.peer_list, seed) if believable(each.address, least)
    ]
    return [Contact(PeerId(reply.peer), seed.address), *named]


def worth_a_lookup(met: Sequence[Contact], table: Table, *, joined_before: bool) -> bool:
    """Whether to look up our own id: the first time, or if there are new contacts."""
    strangers = [each for each in met if each.peer and table.get(each.peer.raw) is None]
    return bool(strangers) or not joined_before


def unknown_neighbours(met: Sequence[Contact], table: Table) -> list[Contact]:
    """Those of the peers that one of them names that we do not know, and that are next to us."""
    k, own = table.config.k, int.from_bytes(table.own.raw)
    nearest = table.nearest(table.own.raw, k)
    radius = nearest[-1].number ^ own if len(nearest) == k else 1 << 256
    return [
        each
        for each in met[1:]
        if each.peer is not None
        and each.peer != table.own
        and int.from_bytes(each.peer.raw) ^ own < radius
        and table.get(each.peer.raw) is None
    ]
