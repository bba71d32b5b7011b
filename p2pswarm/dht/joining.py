"""Joining the DHT through seeds: what a greeting brings, and when joining is over.

All seeds are greeted at once and the first that answers is enough, so a dead seed costs
nothing. A seed may turn out to be ourselves, under a name that we did not know.

Errors:  BadMessage for a reply that is none to `Identify`; NoRoute if no seed answers.
Source:  Maymounkov and Mazieres (2002), 2.3.
"""

from collections.abc import Sequence
from enum import Enum, auto

from p2pswarm.dht.messages import Identified, contact_of, contacts_in
from p2pswarm.dht.routing_table import Table
from p2pswarm.errors import BadMessage, NoRoute
from p2pswarm.ids import Contact
from p2pswarm.wire.message import Message


class Greeting(Enum):
    """How a seed answered."""

    ANSWERED = auto()
    SILENT = auto()
    """No answer, or none that could be used."""
    OURSELVES = auto()


class Joining:
    """Follows one round of greetings to its end."""

    def __init__(self, greeted: Sequence[Contact]) -> None:
        self._left = len(greeted)
        self._silent: list[Contact] = []
        self._joined = False

    def greeted(self, seed: Contact, greeting: Greeting) -> None:
        """Note how one of the seeds has answered."""
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
        """Why joining failed; None if it did not. Having only ourselves as a seed is no failure."""
        if not self.over or self._joined or not self._silent:
            return None
        addresses = ", ".join(str(seed.address) for seed in self._silent)
        return NoRoute(f"no answer from {addresses}: is a node running and reachable there?")


def met_through(seed: Contact, reply: Message) -> list[Contact]:
    """The contact of a seed that was greeted, and then the servers that it knows close to us."""
    if not isinstance(reply, Identified):
        raise BadMessage(f"{type(reply).__name__} is no answer to Identify")
    return [contact_of(reply.peer, str(seed.address)), *contacts_in(reply.peer_list)]


def worth_a_lookup(met: Sequence[Contact], table: Table, *, joined_before: bool) -> bool:
    """Whether to look for those closest to us: the first time, or if we met strangers."""
    strangers = [each for each in met if each.peer and table.get(each.peer.raw) is None]
    return bool(strangers) or not joined_before
