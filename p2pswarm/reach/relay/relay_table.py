"""RelayTable: who is reachable through this relay, and which circuits wait or are joined.

Errors:  Busy when there is no room for a reservation.
Source:  docs/relays.md; libp2p's circuit relay v2 for reservations.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from p2pswarm.base.errors import Busy
from p2pswarm.base.ids import PeerId
from p2pswarm.net.endpoint.preface import TICKET_BYTES, CircuitStatus
from p2pswarm.net.guard.connection_limits import FairSlots, GroupCounter
from p2pswarm.net.os.addresses import address_groups, network_of

BUSY_S = 60.0  # a relay without room is tried again after a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """The most that a relay gives away; docs/relays.md has the reasons."""

    reservations_max: int = 128
    lasts_s: float = 600.0
    """A reservation ends after this long without a renewal."""
    circuits_max: int = 512
    network_circuits_max: int = 256
    """Of them, for the reserved peers of one network."""
    peer_circuits_max: int = 64
    dialler_circuits_max: int = 48
    """Of one peer's, for diallers of one network."""
    waiting_max: int = 16
    """Circuits of one peer that nobody has taken yet."""
    dialler_waiting_max: int = 8
    """Of them, for diallers of one network."""
    ticket_s: float = 5.0
    """Time for which a circuit waits to be taken."""


@dataclass(frozen=True, slots=True)
class RelayReservation:
    """A peer's right to be reached here."""

    number: int
    peer: PeerId
    host: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class Circuit:
    """A way to a reserved peer, for one dialler."""

    number: int
    ticket: bytes
    """Good once, for who takes the circuit."""
    reservation: RelayReservation
    """The reserved peer's, as it was when the circuit was asked for."""
    dialler: str
    """The host that asked."""
    waits_until_s: float

    @property
    def pair(self) -> tuple[PeerId, str]:
        """The pair that has one limit of rate: the reserved peer, and the host that dials it."""
        return self.reservation.peer, self.dialler

    @property
    def networks(self) -> tuple[str, str]:
        """The group that shares the relay as one: the networks of both ends."""
        return network_of(self.reservation.host), network_of(self.dialler)


@dataclass(frozen=True, slots=True)
class ReservationEnded:
    """A reservation expired, was displaced, or was replaced by a newer one of its peer."""

    number: int


@dataclass(frozen=True, slots=True)
class CircuitEnded:
    """A circuit that waited will not be taken any more."""

    number: int


RelayEvent = ReservationEnded | CircuitEnded


class RelayTable:
    """The reservations and circuits of one relay.

    It decides who gets a reservation or a circuit. It knows no sockets: a circuit is a number
    here. What a peer can make us keep is limited, by peer and by group of addresses; joined
    circuits are never displaced, so whoever comes later cannot end what trains.
    """

    def __init__(self, limits: RelayLimits, entropy: Callable[[int], bytes]) -> None:
        """`entropy`: returns that many random bytes, for tickets."""
        self._limits = limits
        self._entropy = entropy
        self._last_number = 0
        self._reservations: dict[int, RelayReservation] = {}
        self._by_peer: dict[PeerId, int] = {}
        self._places: FairSlots[int] = FairSlots()
        self._waiting: dict[bytes, Circuit] = {}  # by ticket, in the order of their deadlines
        self._circuits: dict[int, Circuit] = {}
        self._held: GroupCounter[tuple[str, ...]] = GroupCounter()
        self._events: list[RelayEvent] = []

    @property
    def reservations(self) -> int:
        """The number of peers that are reachable."""
        return len(self._reservations)

    @property
    def circuits(self) -> int:
        """The number of circuits that wait or are joined."""
        return len(self._circuits)

    def drain(self) -> list[RelayEvent]:
        """Return what has ended by itself since the last call."""
        told, self._events = self._events, []
        return told

    def next_deadline_s(self) -> float | None:
        """Return when something ends by itself next."""
        first = next(iter(self._waiting.values()), None)
        ends = [each.expires_s for each in self._reservations.values()]
        return min([*ends, first.waits_until_s] if first else ends, default=None)

    def on_deadline(self, now_s: float) -> None:
        """End what has lasted long enough."""
        for held in [each for each in self._reservations.values() if each.expires_s <= now_s]:
            self._end(held)
        for circuit in list(self._waiting.values()):
            if circuit.waits_until_s > now_s:
                break
            self._give_up(circuit)

    # reservations

    def reserve(self, peer: PeerId, host: str, now_s: float) -> RelayReservation:
        """A reservation for a peer whose link comes from `host`; Busy if there is no room.

        An older one of the same peer ends.
        """
        self.on_deadline(now_s)
        old = self._by_peer.get(peer)
        if old is not None:
            self._end(self._reservations[old])
        self._make_room(host)
        self._last_number += 1
        held = RelayReservation(self._last_number, peer, host, now_s + self._limits.lasts_s)
        self._reservations[held.number] = held
        self._by_peer[peer] = held.number
        self._places.add(held.number, address_groups(host))
        return held

    def renew(self, number: int, now_s: float) -> bool:
        """Let a reservation last from now on; whether it is still there."""
        self.on_deadline(now_s)
        held = self._reservations.get(number)
        if held is None:
            return False
        self._reservations[number] = replace(held, expires_s=now_s + self._limits.lasts_s)
        return True

    def release(self, number: int) -> None:
        """End a reservation whose stream is over; joined circuits go on."""
        held = self._reservations.get(number)
        if held is not None:
            self._end(held)

    # circuits

    def ask(self, peer: PeerId, dialler: str, now_s: float) -> Circuit | CircuitStatus:
        """A circuit to a peer for a dialler at this host, or why not."""
        self.on_deadline(now_s)
        number = self._by_peer.get(peer)
        if number is None:
            return CircuitStatus.NOT_RESERVED
        held = self._reservations[number]
        if len(self._circuits) >= self._limits.circuits_max:
            return CircuitStatus.FULL
        counted = _counted(held, dialler) | _counted_waiting(held, dialler)
        most = self._most()
        if any(self._held[name] >= most[name[0]] for name in counted):
            return CircuitStatus.FULL
        self._last_number += 1
        until_s = now_s + self._limits.ticket_s
        ticket = self._entropy(TICKET_BYTES)
        circuit = Circuit(self._last_number, ticket, held, dialler, until_s)
        for name in counted:
            self._held.add(name)
        self._circuits[circuit.number] = self._waiting[ticket] = circuit
        return circuit

    def take(self, ticket: bytes, now_s: float) -> Circuit | CircuitStatus:
        """The circuit that waits for this ticket, which is used up now."""
        self.on_deadline(now_s)
        circuit = self._waiting.get(ticket)
        if circuit is None:
            return CircuitStatus.NO_TICKET
        self._wait_over(circuit)
        return circuit

    def close(self, circuit: Circuit) -> None:
        """Forget a circuit that is over, or whose dialler has hung up. Any number of times."""
        if self._circuits.pop(circuit.number, None) is None:
            return
        self._wait_over(circuit)
        self._lower(_counted(circuit.reservation, circuit.dialler))

    # inside

    def _make_room(self, host: str) -> None:
        if len(self._reservations) < self._limits.reservations_max:
            return
        oldest = self._reservations[next(self._places.next_to_go())]
        theirs, ours = address_groups(oldest.host), address_groups(host)
        ends = range(1, min(len(theirs), len(ours)) + 1)
        apart = next((end for end in ends if theirs[:end] != ours[:end]), None)
        if apart is None or (
            self._places.count(theirs[:apart]) <= self._places.count(ours[:apart]) + 1
        ):
            raise Busy(f"{len(self._reservations)} peers are reachable here already", BUSY_S)
        self._end(oldest)

    def _end(self, held: RelayReservation) -> None:
        del self._reservations[held.number]
        del self._by_peer[held.peer]
        self._places.remove(held.number)
        self._events.append(ReservationEnded(held.number))
        for circuit in list(self._waiting.values()):
            if circuit.reservation.number == held.number:
                self._give_up(circuit)

    def _give_up(self, circuit: Circuit) -> None:
        self.close(circuit)
        self._events.append(CircuitEnded(circuit.number))

    def _wait_over(self, circuit: Circuit) -> None:
        if self._waiting.pop(circuit.ticket, None) is not None:
            self._lower(_counted_waiting(circuit.reservation, circuit.dialler))

    def _lower(self, counted: set[tuple[str, ...]]) -> None:
        for name in counted:
            self._held.remove(name)

    def _most(self) -> dict[str, int]:
        limits = self._limits
        return {
            "network": limits.network_circuits_max,
            "peer": limits.peer_circuits_max,
            "dialler": limits.dialler_circuits_max,
            "waiting": limits.waiting_max,
            "waiting dialler": limits.dialler_waiting_max,
        }


def _counted(held: RelayReservation, dialler: str) -> set[tuple[str, ...]]:
    """Return the counters of a circuit, from when it is asked for until it is over."""
    peer = str(held.peer)
    return {
        ("network", network_of(held.host)),
        ("peer", peer),
        ("dialler", peer, network_of(dialler)),
    }


def _counted_waiting(held: RelayReservation, dialler: str) -> set[tuple[str, ...]]:
    """Return the further counters of a circuit, as long as nobody has taken it."""
    peer = str(held.peer)
    return {("waiting", peer), ("waiting dialler", peer, network_of(dialler))}
