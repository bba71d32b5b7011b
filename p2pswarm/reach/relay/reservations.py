"""Reservations: at which relays a node that cannot be dialled is reachable.

It wants a few relays, in different networks where it can, and uses those that were named first, by
the last time that they were named: whoever names them has measured them again. It
is told how attempts went and says what to do next: reserve at a relay, or renew. A relay that ends
a reservation is replaced at once by one that was not asked yet; it has another chance later.

Units:   `now_s` seconds on a monotonic clock.
Errors:  none.
Source:  docs/relays.md, "The reserved peer".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from p2pswarm.base.ids import Contact
from p2pswarm.net.cards.card import RELAYS_MAX
from p2pswarm.net.os.addresses import network_of

KNOWN_MAX = 32  # relays to choose from: peers name them, so they are limited
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 60.0
RETRY_ASKED_MAX_S = 600.0  # a relay that asks for more patience than this is asked again anyway
DOUBLINGS_MAX = 6  # RETRY_FIRST_S doubled so often exceeds RETRY_MAX_S
RENEW_AT = 0.5  # of the time that a reservation lasts: a lost renewal leaves time for another
RENEW_MIN_S = 5.0  # a relay that grants less than twice this is not asked all the time
ANSWER_S = 5.0  # the longest time for a relay to confirm


class RelayState(Enum):
    """What a node has at a relay."""

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
    """How many were named before it, the last time that it was named."""


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
    """The relays that a node knows, and what it has there."""

    def __init__(self, wanted: int = RELAYS_MAX) -> None:
        self._wanted = wanted
        self._relays: dict[Contact, _KnownRelay] = {}
        self._leave: list[Contact] = []

    @property
    def held(self) -> tuple[Contact, ...]:
        """Where we are reachable, in the order in which the relays were named."""
        states = (RelayState.HELD, RelayState.RENEWING)
        return tuple(each.relay for each in self._relays.values() if each.state in states)

    def want(self, count: int, now_s: float) -> None:
        """Keep so many reservations from now on; those that are too many are given back."""
        self._wanted = count
        under_way = [each for each in self._relays.values() if each.state in UNDER_WAY]
        for known in under_way[count:]:
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

    def reserved(self, relay: Contact, lasts_s: float, now_s: float) -> None:
        """The relay has confirmed a reservation, or its renewal."""
        known = self._relays.get(relay)
        if known is not None and known.state in UNDER_WAY:
            known.state, known.failures = RelayState.HELD, 0
            known.at_s = now_s + max(lasts_s * RENEW_AT, RENEW_MIN_S)

    def ended(self, relay: Contact, now_s: float, retry_after_s: float = 0.0) -> None:
        """The stream to the relay has ended, or could not be opened."""
        known = self._relays.get(relay)
        if known is not None and known.state in UNDER_WAY:
            self._idle(known, now_s, retry_after_s)

    def actions(self, now_s: float) -> list[ReservationAction]:
        """What to do now; each is told once."""
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
        """When to ask for actions again, if nothing happens before."""
        due = list(self._relays.values())
        if self._missing() <= 0:
            due = [each for each in due if each.state in UNDER_WAY]
        return min((each.at_s for each in due), default=None)

    def _forget_one(self) -> bool:
        """Forget the idle relay that has failed most often; False if none has."""
        idle = [each for each in self._relays.values() if each.state is RelayState.IDLE]
        worst = max(idle, key=lambda each: each.failures, default=None)
        if worst is None or not worst.failures:
            return False
        del self._relays[worst.relay]
        return True

    def _missing(self) -> int:
        return self._wanted - sum(each.state in UNDER_WAY for each in self._relays.values())

    def _next(self, now_s: float) -> _KnownRelay | None:
        """The relay to ask next: in a network of its own, with few failures, named early."""
        if self._missing() <= 0:
            return None
        used = {
            network_of(each.relay.address.host)
            for each in self._relays.values()
            if each.state in UNDER_WAY
        }
        free = [
            each
            for each in self._relays.values()
            if each.state is RelayState.IDLE and each.at_s <= now_s
        ]
        return min(
            free,
            key=lambda one: (network_of(one.relay.address.host) in used, one.failures, one.rank),
            default=None,
        )

    def _idle(self, known: _KnownRelay, now_s: float, retry_after_s: float) -> None:
        wait_s = min(RETRY_FIRST_S * 2**known.failures, RETRY_MAX_S)
        known.failures = min(known.failures + 1, DOUBLINGS_MAX)
        wait_s = max(wait_s, min(retry_after_s, RETRY_ASKED_MAX_S))
        known.state, known.at_s = RelayState.IDLE, now_s + wait_s
