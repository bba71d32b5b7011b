"""Reservations: at which relays a node is reachable, how it chooses them, and what it asks of them.

Units:   seconds on the caller's monotonic clock; in messages, milliseconds and bytes per second.
Source:  docs/relays.md.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from math import ceil, log2
from typing import Annotated

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.net.cards.card import RELAYS_MAX
from p2pswarm.net.endpoint.preface import TICKET_BYTES
from p2pswarm.net.os.addresses import network_of
from p2pswarm.net.wire.message import Message, Range, Size, message

LASTS_MS_MAX = 24 * 3600 * 1000  # nobody plans further
CIRCUITS_MAX = 65_535
RATE_MAX = 2**53


@message(32)
@dataclass(frozen=True, slots=True)
class Reserve(Message):
    """From a peer that wants to be reached through the relay; on the open stream: renew."""


@message(33)
@dataclass(frozen=True, slots=True)
class Reserved(Message):
    """The relay's answer to every `Reserve`."""

    lasts_ms: Annotated[int, Range(1, LASTS_MS_MAX)]
    """From now; renew at half of it."""
    circuits_max: Annotated[int, Range(1, CIRCUITS_MAX)]
    """The most circuits of this peer at a time."""
    pair_bytes_per_s: Annotated[int, Range(0, RATE_MAX)]
    """The most that all circuits with one dialler carry; 0: no limit."""


@message(34)
@dataclass(frozen=True, slots=True)
class Incoming(Message):
    """From the relay: somebody asks for the peer. It takes the circuit with the ticket."""

    ticket: Annotated[bytes, Size(TICKET_BYTES, TICKET_BYTES)]


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
    """One address of each candidate, best first, without those that hold a reservation of ours.

    Whoever names itself a relay is believed only as far as we have dialled it: what does not answer
    us answers nobody. The nearest come first, by the pings of the links to them: whatever goes
    through a relay goes there and back. All who look for relays meet the same few peers first. So
    of those that are about as near each begins with those whose ids are next to its own; a swarm's
    relays share its hidden nodes.
    """
    best: dict[PeerId, RelayCandidate] = {}
    for each in candidates:
        peer = each.relay.peer
        if peer is None or peer == us or peer in held:
            continue
        known = best.get(peer)
        if known is None or (each.rtt_s and not known.rtt_s):
            best[peer] = each

    def rank(peer: PeerId) -> tuple[bool, int, int]:
        each = best[peer]
        return each.mapped, distance_class(each.rtt_s), peer.distance(us.raw)

    return [best[peer].relay for peer in sorted(best, key=rank)]


def distance_class(rtt_s: float) -> int:
    """Return the distance of a round trip in doublings: a smaller difference does not count."""
    return max(0, ceil(log2((rtt_s or UNKNOWN_S) / NEAR_S)))


KNOWN_MAX = 32  # relays to choose from: peers name them, so they are limited
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 60.0
RETRY_ASKED_MAX_S = 600.0  # a relay that asks for more patience than this is asked again anyway
DOUBLINGS_MAX = 6  # RETRY_FIRST_S doubled so often exceeds RETRY_MAX_S
RENEW_AT = 0.5  # of the time that a reservation lasts: a lost renewal leaves time for another
RENEW_MIN_S = 5.0  # a relay that grants less than twice this is not asked all the time
ANSWER_S = 5.0  # the longest time for a relay to confirm


class RelayState(Enum):
    """The state of a node's reservation at a relay."""

    IDLE = auto()
    ASKED = auto()
    HELD = auto()
    RENEWING = auto()


UNDER_WAY = (RelayState.ASKED, RelayState.HELD, RelayState.RENEWING)


@dataclass(slots=True)
class _KnownRelay:
    """A relay that may be used."""

    relay: Contact
    state: RelayState = RelayState.IDLE
    at_s: float = float("-inf")
    """Idle: when it may be asked again. Held: when to renew. Else: when its answer is late."""
    failures: int = 0
    rank: int = 0
    """The number that were named before it, the last time that it was named."""


@dataclass(frozen=True, slots=True)
class ReserveAt:
    """Open a stream to this relay and reserve."""

    relay: Contact


@dataclass(frozen=True, slots=True)
class RenewAt:
    """Ask for more time on the stream to this relay."""

    relay: Contact


@dataclass(frozen=True, slots=True)
class LeaveRelay:
    """Close the stream to this relay: it does not answer, or is not wanted any more."""

    relay: Contact


ReservationAction = ReserveAt | RenewAt | LeaveRelay


class Reservations:
    """The relays that a node knows, and what it has there.

    It wants a few relays, in different networks where it can, and uses those that were named
    first, by the last time that they were named: whoever names them has measured them again. It is
    told how attempts went and says what to do next: reserve at a relay, or renew. A relay that
    ends a reservation is replaced at once by one that was not asked yet; it has another chance
    later.
    """

    def __init__(self, wanted: int = RELAYS_MAX) -> None:
        self._wanted = wanted
        self._relays: dict[Contact, _KnownRelay] = {}
        self._leave: list[Contact] = []

    @property
    def held(self) -> tuple[Contact, ...]:
        """Return where we are reachable, in the order in which the relays were named."""
        states = (RelayState.HELD, RelayState.RENEWING)
        return tuple(each.relay for each in self._relays.values() if each.state in states)

    def want(self, count: int, now_s: float) -> None:
        """Keep so many reservations from now on; those that are too many are given back."""
        self._wanted = count
        for known in self._under_way()[count:]:
            known.state, known.at_s = RelayState.IDLE, now_s + RETRY_FIRST_S
            self._leave.append(known.relay)

    def offer(self, relays: Iterable[Contact]) -> None:
        """Name relays to choose from, the best first.

        Of KNOWN_MAX, one that has failed makes room; if there is none, a new one is ignored.
        """
        for rank, relay in enumerate(relays):
            known = self._relays.get(relay)
            if known is None:
                if len(self._relays) >= KNOWN_MAX and not self._forget_one():
                    return
                known = self._relays[relay] = _KnownRelay(relay)
            known.rank = rank

    def withdraw(self, relay: Contact) -> None:
        """Use this relay no more."""
        known = self._relays.pop(relay, None)
        if known is not None and known.state in UNDER_WAY:
            self._leave.append(relay)

    def on_confirmation(self, relay: Contact, lasts_s: float, now_s: float) -> None:
        """The relay has confirmed a reservation, or its renewal."""
        known = self._relays.get(relay)
        if known is not None and known.state in UNDER_WAY:
            known.state, known.failures = RelayState.HELD, 0
            known.at_s = now_s + max(lasts_s * RENEW_AT, RENEW_MIN_S)

    def on_end(self, relay: Contact, now_s: float, retry_after_s: float = 0.0) -> None:
        """The stream to the relay has ended, or could not be opened."""
        known = self._relays.get(relay)
        if known is not None and known.state in UNDER_WAY:
            self._idle(known, now_s, retry_after_s)

    def drain(self, now_s: float) -> list[ReservationAction]:
        """Return what to do now; each is returned once."""
        told: list[ReservationAction] = [LeaveRelay(relay) for relay in self._leave]
        self._leave = []
        for known in self._relays.values():
            if known.at_s > now_s:
                continue
            if known.state is RelayState.HELD:
                known.state, known.at_s = RelayState.RENEWING, now_s + ANSWER_S
                told.append(RenewAt(known.relay))
            elif known.state is not RelayState.IDLE:
                self._idle(known, now_s, 0.0)
                told.append(LeaveRelay(known.relay))
        while (chosen := self._next(now_s)) is not None:
            chosen.state, chosen.at_s = RelayState.ASKED, now_s + ANSWER_S
            told.append(ReserveAt(chosen.relay))
        return told

    def next_deadline_s(self) -> float | None:
        """Return when to ask for actions again, if nothing happens before."""
        due = self._relays.values() if self._missing() > 0 else self._under_way()
        return min((each.at_s for each in due), default=None)

    def _forget_one(self) -> bool:
        """Forget the idle relay that has failed most often; False if none has."""
        idle = [each for each in self._relays.values() if each.state is RelayState.IDLE]
        worst = max(idle, key=lambda each: each.failures, default=None)
        if worst is None or not worst.failures:
            return False
        del self._relays[worst.relay]
        return True

    def _under_way(self) -> list[_KnownRelay]:
        return [each for each in self._relays.values() if each.state in UNDER_WAY]

    def _missing(self) -> int:
        return self._wanted - len(self._under_way())

    def _next(self, now_s: float) -> _KnownRelay | None:
        """The relay to ask next: in a network of its own, with few failures, named early."""
        if self._missing() <= 0:
            return None
        used = {network_of(each.relay.address.host) for each in self._under_way()}
        idle = (each for each in self._relays.values() if each.state is RelayState.IDLE)
        return min(
            (each for each in idle if each.at_s <= now_s),
            key=lambda one: (network_of(one.relay.address.host) in used, one.failures, one.rank),
            default=None,
        )

    def _idle(self, known: _KnownRelay, now_s: float, retry_after_s: float) -> None:
        wait_s = min(RETRY_FIRST_S * 2**known.failures, RETRY_MAX_S)
        known.failures = min(known.failures + 1, DOUBLINGS_MAX)
        wait_s = max(wait_s, min(retry_after_s, RETRY_ASKED_MAX_S))
        known.state, known.at_s = RelayState.IDLE, now_s + wait_s
