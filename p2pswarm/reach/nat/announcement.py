"""Announcements: what a node tells its peers and its user of how it is reached.

Source:  docs/reachability.md section 7; RFC 2439 for damping, which this is a mild form of.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.net.cards.card import RELAYS_MAX
from p2pswarm.net.os.addresses import Scope, scope_of
from p2pswarm.reach.nat.reachability import Belief, Finding, NatKind, State

RELAYS_AFTER_S = 0.5  # a dial-back over 200 ms takes less; then 1.5 s are left of two
RELAYS_LINGER_S = 60.0  # who has just learnt a relayed address still dials it
SPARE_AFTER_S = 5.0  # a start has more urgent things to do
LOST_AFTER_S = 10.0  # a round of dial-backs and the next may contradict each other
EVERY_S, BURST = 10.0, 8  # announcements: a start takes four


@dataclass(frozen=True, slots=True)
class Announcement:
    """The addresses and relays that a node tells."""

    direct: tuple[Address, ...] = ()
    mapped: tuple[Address, ...] = ()
    """At a router that forwards them to us."""
    relays: tuple[Contact, ...] = ()
    """Through which we are reached, with their ids."""
    relay: bool = False
    """True if we pass on bytes for others."""

    @property
    def client(self) -> bool:
        """True if nobody can dial us."""
        return not (self.direct or self.mapped)

    def best(self, us: PeerId) -> Address | None:
        """The one address to name where there is room for one: a stranger's best chance."""
        public = [each for each in self.direct if scope_of(each.host) is Scope.PUBLIC]
        relayed = [each.address.through(us) for each in self.relays]
        return next(iter((*public, *self.mapped, *relayed, *self.direct)), None)


@dataclass(frozen=True, slots=True)
class SeekRelays:
    """Have so many reservations at relays, and give the others back."""

    count: int


AnnouncerEvent = Announcement | SeekRelays


class Announcer:
    """Decides what one node announces.

    What is found out flaps, and each announcement goes to every linked peer. So an address that is
    no longer believed stays for a while, relays stay for a while after they are needed no more, and
    announcements have an allowance.
    """

    def __init__(
        self, *, fixed: Address | None, through_relays: bool, serves: bool, spare: int = 0
    ) -> None:
        """`fixed`: the address that the user has named, or the only one that there is.

        `through_relays`: the user has named relays, so that others cannot dial us. `serves`:
        whether we pass on bytes for others when they can. `spare`: how many relays we have even
        if others can dial us, for when the road between two of us fails.
        """
        self._fixed = fixed
        self._through_relays = through_relays
        self._serves = serves and not through_relays
        self._spare = spare
        self._found: tuple[Finding, ...] = ()
        self._relays: tuple[Contact, ...] = ()
        self._lost: dict[Address, tuple[float, bool]] = {}
        """Addresses that are not believed any more: until when they are told, and if mapped."""
        self._said: Announcement | None = None
        self._allowance = TokenBucket(EVERY_S, BURST)
        self._met_s: float | None = None
        """Time since which somebody could have reached us and did not."""
        self._reached_s: float | None = None
        """Time since which we are reached without relays."""
        self._seeks = 0
        """The number of reservations that we have asked for."""
        self._events: list[AnnouncerEvent] = []

    # what it is told

    def on_link(self, now_s: float) -> None:
        """A link to a peer is up, which could dial us."""
        if self._met_s is None:
            self._met_s = now_s
        self.on_deadline(now_s)

    def on_findings(self, found: Iterable[Finding], now_s: float) -> None:
        """Take what is known of each address family, all of them."""
        own, direct, mapped = self._own(), *self._believed()
        self._found = tuple(found)
        if own != self._own():
            self._lost.clear()  # of another network: nobody is there any more
        else:
            until_s = now_s + LOST_AFTER_S
            self._lost |= {at: (until_s, at in mapped) for at in (*direct, *mapped)}
        for at in (at for believed in self._believed() for at in believed):
            self._lost.pop(at, None)
        reached = self._fixed is not None or any(map(_trusted, self._found))
        if not reached and self._reached_s is not None:
            self._met_s = now_s
        self._reached_s = (self._reached_s or now_s) if reached else None
        self.on_deadline(now_s)

    def on_relays(self, relays: Iterable[Contact], now_s: float) -> None:
        """These relays hold a reservation of ours."""
        self._relays = tuple(relays)
        self.on_deadline(now_s)

    def on_deadline(self, now_s: float) -> None:
        """Decide whatever has become due."""
        seeks = self._relays_wanted(now_s)
        if seeks != self._seeks:
            self._seeks = seeks
            self._events.append(SeekRelays(seeks))
        self._lost = {at: lost for at, lost in self._lost.items() if lost[0] > now_s}
        wanted = self._wanted()
        if self._knows() and wanted != self._said and self._allowance.take(now_s):
            self._said = wanted
            self._events.append(wanted)

    # what it asks for

    @property
    def current(self) -> Announcement:
        """The announcement that holds now."""
        return self._said or Announcement()

    def drain(self) -> list[AnnouncerEvent]:
        """Return what to do; each is returned once."""
        events, self._events = self._events, []
        return events

    def next_deadline_s(self) -> float | None:
        """Return when something becomes due by itself."""
        due = [until_s for until_s, _ in self._lost.values()]
        if self._reached_s is not None and not self._through_relays:
            due += [self._reached_s + RELAYS_LINGER_S] if self._seeks > self._spare else []
            if self._seeks < self._spare and self._met_s is not None:
                due.append(self._reached_s + SPARE_AFTER_S)
        elif self._met_s is not None and self._seeks < RELAYS_MAX:
            due.append(self._met_s + RELAYS_AFTER_S)
        if self._knows() and self._wanted() != self._said:
            due.append(self._allowance.next_s())
        return min(due, default=None)

    # what it decides

    def _relays_wanted(self, now_s: float) -> int:
        if self._through_relays:
            return RELAYS_MAX
        if self._reached_s is None:
            due = self._met_s is not None and now_s >= self._met_s + RELAYS_AFTER_S
            return RELAYS_MAX if due else self._seeks
        lingering = self._seeks if now_s < self._reached_s + RELAYS_LINGER_S else 0
        settled = self._met_s is not None and now_s >= self._reached_s + SPARE_AFTER_S
        return max(lingering, self._spare if settled else 0)

    def _knows(self) -> bool:
        """Return whether we know anything to tell: not before a look at our own addresses."""
        return self._fixed is not None or self._through_relays or bool(self._found)

    def _own(self) -> list[Address | None]:
        return [each.own for each in self._found]

    def _wanted(self) -> Announcement:
        direct, mapped = self._believed()
        for at, (_, is_mapped) in self._lost.items():
            (mapped if is_mapped else direct).append(at)
        relay = self._serves and (self._fixed is not None or any(map(_dialled, self._found)))
        return Announcement(tuple(direct), tuple(mapped), self._relays, relay)

    def _believed(self) -> tuple[list[Address], list[Address]]:
        """The direct addresses, and the mapped ones."""
        if self._fixed is not None:
            return [self._fixed], []
        direct: dict[Address, None] = {}
        mapped: dict[Address, None] = {}
        for found in self._found:
            state, at = found.belief.state, found.belief.address
            if at is not None and _trusted(found):
                (mapped if state is State.MAPPED else direct)[at] = None
            if found.own is not None and not self._through_relays and _own_is_told(found):
                direct[found.own] = None
        return list(direct), [at for at in mapped if at not in direct]


def _trusted(found: Finding) -> bool:
    """Return whether others reach us, at an address that not only one of them has named."""
    belief, ours = found.belief, [each.host for each in (found.own, found.lease) if each]
    at = belief.address
    return belief.reachable != "no" and at is not None and (belief.sure or at.host in ours)


def _own_is_told(found: Finding) -> bool:
    """Return whether our own address is worth a dial.

    A private one is, whatever strangers say of it: our neighbours reach us there, and strangers
    do not believe it. A public one is, unless it is sure that nobody gets through.
    """
    assert found.own is not None
    if "%" in found.own.host or scope_of(found.own.host) is Scope.NOWHERE:
        return False  # others have no such zone
    private = scope_of(found.own.host) is Scope.PRIVATE
    return private or found.belief.state is not State.NATTED or not found.belief.sure


def _dialled(found: Finding) -> bool:
    """Return whether strangers reach us, or nobody has tried an address that they can dial."""
    if found.belief.state is State.PROBING:
        return found.own is not None and scope_of(found.own.host) is Scope.PUBLIC
    return _trusted(found)


PEERS_HERE = (
    "not known: all peers are on this machine, where a dial proves nothing; p2pswarm doctor "
    "--bootstrap HOST:PORT asks one elsewhere"
)
ASSUMED = ", as one network of peers says"
DOCTOR = "p2pswarm doctor tells what to change"


class ReachabilityEvents:
    """The lines of one node for its user, each when it is known and when it changes."""

    def __init__(self, port: int) -> None:
        """`port`: where the node listens."""
        self._port = port
        self._said = ""

    def line(self, belief: Belief, *, settled: bool, relayed: Address | None = None) -> str:
        """The line to print now; empty if nothing is known or new.

        `settled`: whether the router has been asked for a port; until then nobody despairs.
        `relayed`: where a relay passes us on.
        """
        if belief.reachable == "no" and relayed is not None:
            line, settled = f"reachable: relayed at {relayed}", True
        else:
            line = reachable_line(belief, self._port)
        if not line or line == self._said or (belief.reachable == "no" and not settled):
            return ""
        self._said = line
        return line

    def lone_line(self, why: str) -> str:
        """The line that says why nothing is known; empty if something is."""
        if self._said:
            return ""
        self._said = f"reachable: {why}"
        return self._said


def reachable_line(belief: Belief, port: int) -> str:
    """A belief in a line; empty while nobody has tried."""
    assumed = "" if belief.sure else ASSUMED
    if belief.reachable != "no":
        return f"reachable: {belief.reachable} at {belief.address}{assumed}"
    if belief.state is not State.NATTED:
        return ""
    if belief.kind is NatKind.FIREWALL:
        return f"reachable: no, a firewall keeps out who dials port {port}{assumed}; {DOCTOR}"
    return f"reachable: no, the router before this machine forwards no port{assumed}; {DOCTOR}"


def on_this_machine_alone(bound: Address) -> bool:
    """Return whether a node listens where nobody but this machine can dial it."""
    try:
        return ip_address(bound.host.partition("%")[0]).is_loopback
    except ValueError:
        return False
