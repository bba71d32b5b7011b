"""Contacts that we have not dialled yet: those that others name, and those that a peer claims.

Source:  RFC 9000, 8.1, 21.5 and 21.5.3: who may be made to send where before an address is
         validated; libp2p's AutoNAT, which dials back only the address of the request.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from p2pswarm.base.ids import Address, Contact
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.discovery.dht.messages import PeerList, peers_in
from p2pswarm.discovery.dht.routing_table import networks
from p2pswarm.net.guard.connection_limits import GroupCounter
from p2pswarm.net.os.addresses import NAMES, Scope, address_groups, scope_of
from p2pswarm.net.rpc.base import CardSource

NAMED_REFUTED_S = 3600.0  # a host is dialled once in this time on the word of one network
HOSTS_MAX = 4096  # about 1 MB; a lookup dials 96 hosts at most, and most are found
TELLERS_MAX = 1024
JUDGED_S = 60.0  # a teller's names are counted for so long, and it is distrusted for so long
NAMES_LEAST = 8  # names of a teller before it is judged
FOUND_LEAST = 0.25  # of the names of an honest teller half are found when half of a swarm has left


class Word(Enum):
    """The worth of a teller's word."""

    DIAL = auto()
    WAIT = auto()
    """Its host is being dialled on the same word: what comes of that decides."""
    IGNORE = auto()


@dataclass(slots=True)
class _Teller:
    """The outcome of the names that one network has told."""

    since_s: float
    found: int = 0
    missed: int = 0

    @property
    def liar(self) -> bool:
        """True if too few of its names were found."""
        told = self.found + self.missed
        return told >= NAMES_LEAST and self.found < FOUND_LEAST * told


@dataclass(frozen=True, slots=True)
class _Dial:
    """A dial on somebody's word."""

    teller: str
    host: str
    begun_s: float


class UnverifiedContacts:
    """The peers that others name in a lookup: which are dialled, and who is believed.

    A link proves who a peer is, not where it can be dialled. So each unverified contact is dialled
    before it is told to others, and bounds keep anybody from making us dial third parties.

    A lookup finds peers because others name them, so it must dial whom they name. Whoever answers
    lookups can so make many nodes dial a third party, or waste a lookup's requests on nobody. Ids
    are free and addresses are not, so it is the network of the *teller* that is believed or not. A
    host where a named peer was not found is left alone for an hour on that network's word; others
    may still name it, so that nobody can hide a peer by lying about its host.

    A failure counts only if somebody has answered meanwhile: if nobody does, our own network
    fails. Private networks have no bounds, as in tables: a lab is behind one address, and nobody
    from outside is believed private addresses.

    At most `HOSTS_MAX` hosts and `TELLERS_MAX` networks are remembered.
    """

    def __init__(
        self, cards: CardSource, known: Callable[[Contact], bool] = lambda _: False
    ) -> None:
        """`known`: whether we have found a peer at its address ourselves."""
        self._cards = cards
        self._known = known
        self._refuted_s: RecentItems[tuple[str, str], float] = RecentItems(HOSTS_MAX)
        """By teller and host, or teller and address."""
        self._tellers: RecentItems[str, _Teller] = RecentItems(TELLERS_MAX)
        self._dials: dict[Contact, _Dial] = {}
        self._hosts: dict[tuple[str, str], Contact] = {}
        """The dial under way to a host on a teller's word."""
        self._answered_s = float("-inf")

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
        """Return what to do with a peer that the network `teller` has named; see `teller_of`."""
        if not teller or self._known(named):
            return Word.DIAL
        told = self._tellers.get(teller)
        if told is not None and told.liar and now_s - told.since_s < JUDGED_S:
            return Word.IGNORE
        host = _host_of(named.address)
        for place in (host, str(named.address)):
            refuted_s = self._refuted_s.get((teller, place))
            if refuted_s is not None and now_s - refuted_s < NAMED_REFUTED_S:
                return Word.IGNORE
        return Word.DIAL if self._hosts.get((teller, host), named) == named else Word.WAIT

    def begin(self, named: Contact, teller: str, now_s: float) -> None:
        """Note that a peer is dialled on a network's word; report the outcome with `on_outcome`."""
        if teller and not self._known(named):
            self._forget_dial(named)
            host = _host_of(named.address)
            self._dials[named] = _Dial(teller, host, now_s)
            self._hosts[teller, host] = named

    def on_outcome(self, named: Contact, now_s: float, *, found: bool, somebody: bool) -> None:
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
            self._refuted_s[key] = now_s

    def _judge(self, teller: str, now_s: float, *, found: bool) -> None:
        told = self._tellers.get(teller)
        if told is None or now_s - told.since_s >= JUDGED_S:
            told = self._tellers[teller] = _Teller(now_s)
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


def _host_of(address: Address) -> str:
    """The host at an address, or the /56 for IPv6: one home or machine, however it is written."""
    return address_groups(address.host.lower().rstrip("."))[-1]


CLAIM_REFUTED_S = 3600.0  # a host is dialled once in this time on the word of strangers
CLAIM_CHECKS_MAX = 16  # checks under way: few sockets, and 3 s each if nobody is there
CLAIM_CHECK_EVERY_S = 1.0  # one check in this time on average: a scan of a /16 would take 18 hours
CLAIM_CHECK_BURST = 64  # a small swarm that announces names joins at once
CLAIMS_PER_WIDE_NET = 16  # checks of one public /16 (IPv6: /32) in `REFUTED_S`; the table takes 10


class AddressChecks:
    """The claimed addresses to dial: checks under way, and hosts where no peer was found.

    A peer whose link we dialled at the claimed address, or whose link comes from there, needs no
    check. For any other claim we dial the address once and ask who is there. Whoever claims a
    stranger's address so makes us dial the stranger. So a host where the peer was not found is left
    alone for `CLAIM_REFUTED_S`, whoever names it, and there are bounds on checks at a time, over
    time, and for each wide network.

    A claim that is not checked now is forgotten: its peer repeats it with every request.

    The limits on checks bound the hosts that are remembered, too: no more are dialled.
    """

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._refuted_s: dict[str, float] = {}
        """The hosts where a peer was not found, and when; the oldest first."""
        self._begun: deque[tuple[float, str]] = deque()
        """Begin of each check in a public network, and its wide network."""
        self._per_net: GroupCounter[str] = GroupCounter()
        self._allowance = TokenBucket(CLAIM_CHECK_EVERY_S, CLAIM_CHECK_BURST)

    def begin(self, claimed: Address, now_s: float) -> bool:
        """Return whether to dial a claimed address now; if so, report to `on_outcome`."""
        self._forget(now_s)
        host = _host_of(claimed)
        wide_net = networks(claimed.host)[1]
        if (
            host in self._under_way
            or host in self._refuted_s
            or len(self._under_way) >= CLAIM_CHECKS_MAX
            or self._per_net[wide_net] >= CLAIMS_PER_WIDE_NET
            or not self._allowance.take(now_s)
        ):
            return False
        self._under_way.add(host)
        if wide_net:
            self._begun.append((now_s, wide_net))
            self._per_net.add(wide_net)
        return True

    def on_outcome(self, claimed: Address, now_s: float, *, confirmed: bool) -> None:
        """Note whether the peer was found at the address that it claimed."""
        host = _host_of(claimed)
        self._under_way.discard(host)
        if not confirmed:
            self._refuted_s[host] = now_s

    def _forget(self, now_s: float) -> None:
        begin_s = now_s - CLAIM_REFUTED_S
        while self._refuted_s and next(iter(self._refuted_s.values())) <= begin_s:
            del self._refuted_s[next(iter(self._refuted_s))]
        while self._begun and self._begun[0][0] <= begin_s:
            self._per_net.remove(self._begun.popleft()[1])


DIAL_BACKS_MAX = 64  # dials under way: few sockets, and 3 s each if nobody answers
DIAL_BACKS_PER_NETWORK = 16  # of these in one public /24 (IPv6: /48): the rest is for others
DIAL_REFUTED_S = 300.0  # who opens its port is a server five minutes later at most
DIALS_REFUTED_PER_HOST = 16  # addresses of one host in that time: a machine's nodes, not its ports
DIAL_FOUND_S = 600.0  # as long as a bucket goes without being refreshed
DIALS_REMEMBERED = 4096  # about 1 MB


class DialBacks:
    """The peers to dial back at the host from which their links come, and what came of it.

    A peer's link shows that it is at a host, not that it can be dialled there: it may be behind a
    gateway, or may name a port where something else listens. So it is dialled once, and is a
    client until it was found. That harms no third party: whoever has opened a link from a host is
    there. It could have its own host's ports tried, or ours filled with dials that nobody answers,
    so there are bounds for each address, host and network, and for all together.

    What was found is remembered for a while, so that a peer that has no place in a table is not
    dialled at each of its requests.

    At most `DIAL_BACKS_MAX` dials are under way, and `DIALS_REMEMBERED` outcomes are known.
    """

    def __init__(self) -> None:
        self._under_way: dict[Contact, str] = {}
        """Each with its network, empty if that has no bound."""
        self._found_s: RecentItems[Contact, float] = RecentItems(DIALS_REMEMBERED)
        self._refuted_s: dict[Contact, float] = {}
        """Time at which each was not found; the oldest first."""
        self._refuted_per_host: GroupCounter[str] = GroupCounter()

    def found(self, contact: Contact, now_s: float) -> bool:
        """Return whether a peer was found at its address a short time ago."""
        found_s = self._found_s.get(contact)
        return found_s is not None and now_s - found_s < DIAL_FOUND_S

    def begin(self, contact: Contact, now_s: float) -> bool:
        """Return whether to dial a peer back now; if so, report the outcome with `on_outcome`."""
        self._forget(now_s)
        host = contact.address.host
        network = _network_of(host)
        if (
            contact in self._under_way
            or contact in self._refuted_s
            or len(self._under_way) >= DIAL_BACKS_MAX
            or self._refuted_per_host[host] >= DIALS_REFUTED_PER_HOST
            or (network and [*self._under_way.values()].count(network) >= DIAL_BACKS_PER_NETWORK)
        ):
            return False
        self._under_way[contact] = network
        return True

    def on_outcome(self, contact: Contact, now_s: float, *, confirmed: bool) -> bool:
        """Note whether a peer was found; returns whether it was dialled because of `begin`."""
        network = self._under_way.pop(contact, None)
        if confirmed:
            self._drop_refuted(contact)
            self._found_s[contact] = now_s
        elif network is not None:
            self._found_s.pop(contact, None)
            self._drop_refuted(contact)
            self._refuted_s[contact] = now_s
            self._refuted_per_host.add(contact.address.host)
            if len(self._refuted_s) > DIALS_REMEMBERED:
                self._drop_refuted(next(iter(self._refuted_s)))
        return network is not None

    def _forget(self, now_s: float) -> None:
        while self._refuted_s and next(iter(self._refuted_s.values())) <= now_s - DIAL_REFUTED_S:
            self._drop_refuted(next(iter(self._refuted_s)))
        while self._found_s and next(iter(self._found_s.values())) <= now_s - DIAL_FOUND_S:
            del self._found_s[next(iter(self._found_s))]

    def _drop_refuted(self, contact: Contact) -> None:
        if self._refuted_s.pop(contact, None) is not None:
            self._refuted_per_host.remove(contact.address.host)


def _network_of(host: str) -> str:
    """The /24 or /48 of a public host; empty for a private one, whose network has no bound."""
    return address_groups(host)[-2] if scope_of(host) is Scope.PUBLIC else ""
