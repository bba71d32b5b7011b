"""ReachabilityBelief: what a node believes of its own reachability in one address family.

Source:  docs/reachability.md; RFC 4787 section 4.1 for easy and hard; AutoNAT of libp2p for asking
         at all.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Generic, TypeVar

from p2pswarm.base.ids import Address
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.net.os.addresses import address_groups

GROUPS_MAX = 32  # a round asks three groups: those of ten rounds are remembered
VOTE_S = 7200.0  # two of the longest pauses between rounds

Answer = TypeVar("Answer", bound=Hashable)


def group_of(host: str) -> str:
    """The group whose vote a peer at `host` casts: a /16 of IPv4, a /32 of IPv6, or a name."""
    return address_groups(host)[1]


class GroupVotes(Generic[Answer]):
    """The answers of groups of addresses to one question: each has its latest, for a while.

    Ids are free, and so are further addresses in a network that one owns. So peers have no vote
    here: their groups have (`net/os/addresses.py`). At most `GROUPS_MAX` groups are remembered; the
    one that voted longest ago makes way.
    """

    def __init__(self) -> None:
        self._cast: RecentItems[str, tuple[Answer, float]] = RecentItems(GROUPS_MAX)
        """The answer of each group and when it came."""

    def cast(self, group: str, answer: Answer, now_s: float) -> None:
        """Note a group's answer, instead of its last one."""
        self._cast[group] = answer, now_s

    def at_s(self, group: str) -> float | None:
        """Return when a group has voted last; None if it has not."""
        return self._cast[group][1] if group in self._cast else None

    def count(self, now_s: float) -> Counter[Answer]:
        """Count the groups by their answers; votes older than `VOTE_S` do not count."""
        return Counter(answer for answer, at_s in self._cast.values() if now_s - at_s < VOTE_S)

    def forget(self) -> None:
        """Forget every vote."""
        self._cast.clear()


CONFIRM_GROUPS = 2  # one may lie
AGAIN_UNANSWERED_S = 10.0  # also the shortest pause between two rounds: a peer serves 4 a minute
AGAIN_LEASED_S = 1.0  # a new port is tried at once: at the start it comes a moment after the peers
AGAIN_S = 300.0  # a router that was started again is noticed within this
AGAIN_STABLE_S = 3600.0
STABLE_ROUNDS = 3  # with the same, sure belief

A = TypeVar("A")


class State(Enum):
    """The reachability of this node, as far as it is known."""

    ABSENT = "absent"
    """The machine has no address of this family."""
    PROBING = "probing"
    """No peer has tried yet."""
    PUBLIC = "public"
    """At its own address, or at one that a person has forwarded to it."""
    MAPPED = "mapped"
    """At a port that the router forwards at our request."""
    NATTED = "natted"
    """Peers see the node, and cannot dial it."""


class NatKind(Enum):
    """The kind of NAT before the node, as far as it matters to punching."""

    NONE = "none"
    FIREWALL = "firewall"
    """Nothing translates the address, but what was not called does not come in."""
    EASY = "easy"
    """The listening port has one outside port, whoever is called."""
    HARD = "hard"
    """Each peer that is called sees another outside port."""
    UNKNOWN = "unknown"


REACHABLE = {State.PUBLIC: "direct", State.MAPPED: "mapped"}
"""The way by which peers get here; "punched" and "relayed" come with those who do it."""


@dataclass(frozen=True, slots=True)
class Belief:
    """The state that a node takes for true."""

    state: State
    kind: NatKind = NatKind.UNKNOWN
    address: Address | None = None
    """Address to dial the node at; of a natted one its outside address, if the port is known."""
    sure: bool = False
    """True if two groups of peers agree; else one says so, or none was asked."""

    @property
    def reachable(self) -> str:
        """The way by which others reach the node: "direct", "mapped" or "no"."""
        return REACHABLE.get(self.state, "no")


@dataclass(frozen=True, slots=True)
class Finding:
    """All that is known of one address family, for those who tell others."""

    belief: Belief
    own: Address | None
    """Of this machine; None without one."""
    lease: Address | None
    """The port that the router forwards."""


@dataclass(frozen=True, slots=True)
class AskPeers:
    """Have some peers dial these ports now, and say `round_over` afterwards."""

    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BeliefChanged:
    """The belief is another than before."""

    belief: Belief


Event = AskPeers | BeliefChanged


class ReachabilityBelief:
    """The belief of a node about its own reachability in one address family.

    It is told what peers have seen and tried, which address this machine has, and which port the
    router forwards. It answers with a belief, and says when peers should be asked again. Peers
    vote by groups of addresses: one liar, or any number in one group, never make it believe that
    the node is public, or at an address that is another's.

    Two ports and `GROUPS_MAX` groups at most are remembered.
    """

    def __init__(self, listen_port: int) -> None:
        """`listen_port`: where we listen; others reach it from outside under the same number."""
        self._listen_port = listen_port
        self._own_host: str | None = None
        self._lease: Address | None = None
        self._hosts: GroupVotes[str] = GroupVotes()
        self._outside: GroupVotes[Address] = GroupVotes()
        """Address from which groups see calls of the listening port come."""
        self._tried: dict[int, GroupVotes[tuple[Address, bool]]] = {listen_port: GroupVotes()}
        """For each port: which address groups have dialled, and whether their dial arrived."""
        self.belief = Belief(State.ABSENT)
        """Belief that we hold now; only read it."""
        self._events: list[Event] = []
        self._due_s: float | None = None
        self._round_s = float("-inf")
        self._asking = False
        self._more_to_ask = False
        """True if the next round asks somebody who was not asked before."""
        self._stable_rounds = 0

    @property
    def finding(self) -> Finding:
        """The belief, with the addresses that we know."""
        own = None if self._own_host is None else Address(self._own_host, self._listen_port)
        return Finding(self.belief, own, self._lease)

    # what it is told

    def on_interface(self, own_host: str | None, now_s: float) -> None:
        """This machine's address of the family, None without one; another one changes all."""
        if own_host == self._own_host:
            return
        self._own_host = own_host
        self._hosts.forget()
        self._outside.forget()
        for votes in self._tried.values():
            votes.forget()
        self._stable_rounds = 0
        self._due_s = None if own_host is None else now_s
        self._think(now_s)

    def on_lease(self, external: Address | None, now_s: float) -> None:
        """The router forwards this address to us; None: it does no longer."""
        if external == self._lease:
            return
        moot = [each.port for each in (self._lease, external) if each is not None]
        self._lease = external
        tried = {port: votes for port, votes in self._tried.items() if port not in moot}
        self._tried = {port: tried.get(port) or GroupVotes() for port in self.ports}
        self._ask_soon(now_s, AGAIN_LEASED_S)
        self._think(now_s)

    def on_observation(self, observer_host: str, seen_host: str, now_s: float) -> None:
        """A peer sees our link come from, or dials it at, a host."""
        self._hosts.cast(group_of(observer_host), seen_host, now_s)
        self._think(now_s)

    def on_outside_port(self, observer_host: str, seen: Address, now_s: float) -> None:
        """A peer saw a call from our listening port come from an outside address."""
        self._outside.cast(group_of(observer_host), seen, now_s)
        self._think(now_s)

    def on_dial_back(self, observer_host: str, at: Address, now_s: float, *, arrived: bool) -> None:
        """A peer has dialled us at an address; `arrived`: its nonce came to our listener."""
        if at.port in self._tried:
            self._tried[at.port].cast(group_of(observer_host), (at, arrived), now_s)
        self._think(now_s)

    def on_link(self, peer_host: str, now_s: float) -> None:
        """A link to a peer is up, which could be asked."""
        if self.belief.sure and self.belief.state is not State.PROBING:
            return
        if self.asked_s(peer_host) is None:
            self._more_to_ask = True
            self._ask_soon(now_s, AGAIN_UNANSWERED_S)

    def on_round_end(self, asked: int, answered: int, now_s: float) -> None:
        """The round of `AskPeers` is over: so many peers were asked, so many have tried."""
        self._asking = False
        self._think(now_s)
        if not asked:
            self._round_s = float("-inf")  # nobody was bothered: who comes now is asked at once
            return
        pause_s = AGAIN_UNANSWERED_S
        if answered:
            self._stable_rounds = self._stable_rounds + 1 if self.belief.sure else 0
            pause_s = AGAIN_STABLE_S if self._stable_rounds >= STABLE_ROUNDS else AGAIN_S
        due_s = now_s + pause_s
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)

    # what it asks for

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports to have dialled: the leased one and the listening one."""
        leased = [] if self._lease is None else [self._lease.port]
        return tuple(dict.fromkeys([*leased, self._listen_port]))

    def asked_s(self, peer_host: str) -> float | None:
        """Return when a peer's group has dialled us last; None if it never did."""
        group = group_of(peer_host)
        times_s = [votes.at_s(group) for votes in self._tried.values()]
        return max((at_s for at_s in times_s if at_s is not None), default=None)

    @property
    def asks_outside_port(self) -> bool:
        """True if peers are to be called from the listening port: a router hides us, that is sure.

        Such a call opens the router to that peer for a while, and its dial-backs would arrive.
        """
        hidden = self.belief.state is State.NATTED and self.belief.sure
        return hidden and self.belief.kind is not NatKind.FIREWALL

    def busy(self, now_s: float) -> bool:
        """Return whether peers are being asked, or will be soon, so that more will be known."""
        due_s = self.next_deadline_s()
        soon_s = AGAIN_UNANSWERED_S if self._more_to_ask else AGAIN_LEASED_S
        return self._asking or (due_s is not None and due_s <= now_s + soon_s)

    def drain(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def next_deadline_s(self) -> float | None:
        """Return when a round of questions is due; None during one, or if nobody is there."""
        return None if self._asking or self._own_host is None else self._due_s

    def on_deadline(self, now_s: float) -> None:
        """Begin a round if one is due."""
        due_s = self.next_deadline_s()
        self._think(now_s)
        if due_s is not None and now_s >= due_s:
            self._asking = True
            self._due_s = None  # whatever becomes due from now on comes after this round
            self._more_to_ask = False
            self._round_s = now_s
            self._events.append(AskPeers(self.ports))

    def _ask_soon(self, now_s: float, pause_s: float) -> None:
        """Have a round begin this long after the last one, or now, if none is due before."""
        due_s = max(now_s, self._round_s + pause_s)
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)

    # what it believes

    def _think(self, now_s: float) -> None:
        belief = self._believe(now_s)
        if belief != self.belief:
            self.belief = belief
            self._stable_rounds = 0
            self._events.append(BeliefChanged(belief))

    def _believe(self, now_s: float) -> Belief:
        if self._own_host is None:
            return Belief(State.ABSENT)
        counts = {port: self._tried[port].count(now_s) for port in self.ports}
        gateway = None if self._lease is None else self._lease.host
        reached = [_reached(count, (self._own_host, gateway)) for count in counts.values()]
        found = [each for each in reached if each is not None]
        if found:
            address, sure = max(found, key=lambda each: each[1])  # the leased port is first
            return self._reachable_at(address, now_s, sure=sure)
        if not any(counts.values()):
            return Belief(State.PROBING)
        failed = max(count.total() for count in counts.values())
        kind, outside = self._kind(now_s), self._outside_address(now_s)
        return Belief(State.NATTED, kind, outside, sure=failed >= CONFIRM_GROUPS)

    def _reachable_at(self, address: Address, now_s: float, *, sure: bool) -> Belief:
        if address.host == self._own_host:
            return Belief(State.PUBLIC, NatKind.NONE, address, sure)
        mapped = self._lease is not None and address.port == self._lease.port
        state = State.MAPPED if mapped else State.PUBLIC
        return Belief(state, self._kind(now_s), address, sure)

    def _kind(self, now_s: float) -> NatKind:
        if _most_named(self._hosts.count(now_s)) == self._own_host:
            return NatKind.FIREWALL
        seen = self._outside.count(now_s)
        if seen.total() < CONFIRM_GROUPS:
            return NatKind.UNKNOWN
        votes = max(seen.values())
        if votes >= CONFIRM_GROUPS and 2 * votes > seen.total():
            return NatKind.EASY
        return NatKind.HARD if votes == 1 else NatKind.UNKNOWN

    def _outside_address(self, now_s: float) -> Address | None:
        """Return where two groups or more, and most of them, see calls from the listening port."""
        seen = self._outside.count(now_s)
        named = _most_named(seen)
        return named if named is not None and seen[named] >= CONFIRM_GROUPS else None


def _reached(
    tried: Counter[tuple[Address, bool]], hosts: tuple[str | None, ...]
) -> tuple[Address, bool] | None:
    """The address at which more groups have arrived than failed, and whether that is sure.

    `hosts`: those that no peer has named to us, our own and the gateway's. If single groups name
    several addresses, only one of these is taken.
    """
    failed = sum(votes for (_, arrived), votes in tried.items() if not arrived)
    found = {
        address: votes for (address, arrived), votes in tried.items() if arrived and votes > failed
    }
    sure = {address: votes for address, votes in found.items() if votes >= CONFIRM_GROUPS}
    if sure:
        return max(sure, key=lambda each: (sure[each], _everywhere(each.host), each)), True
    own = [address for address in found if address.host in hosts]
    return next(((each, False) for each in own or found if own or len(found) == 1), None)


def _most_named(named: Counter[A]) -> A | None:
    """Return the answer that more than half of the groups give, if any."""
    return next((each for each, votes in named.items() if 2 * votes > named.total()), None)


def _everywhere(host: str) -> bool:
    """Return whether a host is the same one for everybody."""
    try:
        return ip_address(host.partition("%")[0]).is_global
    except ValueError:
        return False
