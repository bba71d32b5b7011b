"""Hearsay: which of the peers that others name in a lookup are dialled, and who is believed.

A lookup finds peers because others name them, so it must dial whom they name. Whoever answers
lookups can so make many nodes dial a third party, or waste a lookup's requests on nobody. Ids are
free and addresses are not, so it is the network of the *teller* that is believed or not. A host
where a named peer was not found is left alone for an hour on that network's word; others may still
name it, so that nobody can hide a peer by lying about its host.

A failure counts only if somebody has answered meanwhile: if nobody does, our own network fails.
Private networks have no bounds, as in tables: a lab is behind one address, and nobody from outside
is believed private addresses.

Units:   seconds on the caller's monotonic clock.
Shapes:  at most `HOSTS_MAX` hosts and `TELLERS_MAX` networks are remembered.
Errors:  BadMessage from `named`.
Source:  RFC 9000, 21.5.3, for requests that a peer is made to send to others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.messages import PeerList, peers_in
from p2pswarm.net.os.addresses import NAMES, Scope, address_groups, scope_of
from p2pswarm.net.rpc.base import CardSource

REFUTED_S = 3600.0  # a host is dialled once in this time on the word of one network
HOSTS_MAX = 4096  # about 1 MB; a lookup dials 96 hosts at most, and most are found
TELLERS_MAX = 1024
JUDGED_S = 60.0  # a teller's names are counted for so long, and it is distrusted for so long
NAMES_LEAST = 8  # names of a teller before it is judged
FOUND_LEAST = 0.25  # of the names of an honest teller half are found when half of a swarm has left


class Word(Enum):
    """What a teller's word is worth."""

    DIAL = auto()
    WAIT = auto()
    """Its host is being dialled on the same word: what comes of that decides."""
    IGNORE = auto()


@dataclass(slots=True)
class _Teller:
    """What came of the names that one network has told."""

    since_s: float
    found: int = 0
    missed: int = 0

    @property
    def liar(self) -> bool:
        """Whether too few of its names were found."""
        told = self.found + self.missed
        return told >= NAMES_LEAST and self.found < FOUND_LEAST * told


@dataclass(frozen=True, slots=True)
class _Dial:
    """A dial on somebody's word."""

    teller: str
    host: str
    begun_s: float


class Hearsay:
    """What came of the addresses that others have named."""

    def __init__(
        self, cards: CardSource, known: Callable[[Contact], bool] = lambda _: False
    ) -> None:
        """`known`: whether we have found a peer at its address ourselves."""
        self._cards = cards
        self._known = known
        self._refuted_s: dict[tuple[str, str], float] = {}
        """By teller and host, or teller and address; the oldest first."""
        self._tellers: dict[str, _Teller] = {}
        """The oldest first."""
        self._dials: dict[Contact, _Dial] = {}
        self._hosts: dict[tuple[str, str], Contact] = {}
        """The dial under way to a host on a teller's word."""
        self._answered_s = float("-inf")

    def __len__(self) -> int:
        """How many hosts and networks are remembered."""
        return len(self._refuted_s) + len(self._tellers)

    def named(self, packed: PeerList, teller: Contact) -> list[Contact]:
        """The peers that a teller names; BadMessage if one did not sign that it is there.

        A peer that has said since that it is elsewhere is left out: its teller may not know yet.
        """
        named: list[Contact] = []
        for contact, card in peers_in(packed, self._cards.read):
            self._cards.learn(card, teller.address.host)
            newest = self._cards.of(card.peer) or card
            if newest is card or contact.address in newest.addresses:
                named.append(contact)
        return named

    def word(self, named: Contact, teller: str, now_s: float) -> Word:
        """What to do with a peer that the network `teller` has named; see `teller_of`."""
        if not teller or self._known(named):
            return Word.DIAL
        told = self._tellers.get(teller)
        if told is not None and told.liar and now_s - told.since_s < JUDGED_S:
            return Word.IGNORE
        host = _host_of(named)
        for place in (host, str(named.address)):
            refuted_s = self._refuted_s.get((teller, place))
            if refuted_s is not None and now_s - refuted_s < REFUTED_S:
                return Word.IGNORE
        return Word.DIAL if self._hosts.get((teller, host), named) == named else Word.WAIT

    def begin(self, named: Contact, teller: str, now_s: float) -> None:
        """Note that a peer is dialled on a network's word; report the outcome with `ended`."""
        if teller and not self._known(named):
            self._forget_dial(named)
            host = _host_of(named)
            self._dials[named] = _Dial(teller, host, now_s)
            self._hosts[teller, host] = named

    def ended(self, named: Contact, now_s: float, *, found: bool, somebody: bool) -> None:
        """Note whether a peer was found; `somebody`: whether any peer of the swarm is there.

        If another peer is there, other ports of its host may be dialled: it may be a machine with
        several nodes, and where nobody listens the whole host is left alone.
        """
        if somebody:
            self._answered_s = now_s
        dial = self._forget_dial(named)
        if dial is None or (not found and self._answered_s < dial.begun_s):
            return
        self._judge(dial.teller, now_s, found=found)
        if not found:
            key = dial.teller, str(named.address) if somebody else dial.host
            self._refuted_s.pop(key, None)  # to the end of the dict
            self._refuted_s[key] = now_s
            if len(self._refuted_s) > HOSTS_MAX:
                del self._refuted_s[next(iter(self._refuted_s))]

    def _judge(self, teller: str, now_s: float, *, found: bool) -> None:
        told = self._tellers.get(teller)
        if told is None or now_s - told.since_s >= JUDGED_S:
            self._tellers.pop(teller, None)
            told = self._tellers[teller] = _Teller(now_s)
            if len(self._tellers) > TELLERS_MAX:
                del self._tellers[next(iter(self._tellers))]
        told.found += found
        told.missed += not found
        if told.liar:
            told.since_s = now_s

    def _forget_dial(self, named: Contact) -> _Dial | None:
        dial = self._dials.pop(named, None)
        if dial is not None and self._hosts.get((dial.teller, dial.host)) == named:
            del self._hosts[dial.teller, dial.host]
        return dial


def teller_of(named: Contact, teller: Contact | None) -> str:
    """The network whose word a dial of `named` would rest on; empty if the word needs no bound.

    It needs none if nobody but us named the peer, or if the address is private.
    """
    if teller is None or scope_of(named.address.host) is not Scope.PUBLIC:
        return ""
    groups = address_groups(teller.address.host)
    return groups[-1] if groups[0] == NAMES else groups[-2]


def _host_of(named: Contact) -> str:
    """The host at an address, or the /56 for IPv6: one home or machine, however it is written."""
    return address_groups(named.address.host.lower().rstrip("."))[-1]
