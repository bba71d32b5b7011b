"""HandshakeLimiter: limits what peers cost us before they prove who they are.

A connection is *silent* until its first message is complete, then it is *answered*. An honest
dialler's first message comes with the connection itself, so it is silent for no time and
answered for a round trip; a connection that never says anything stays silent. Both kinds have
places of their own. If they are taken, the oldest connection of the largest group of addresses
makes way (`fair_places.py`). So silence displaces only silence, a crowd displaces its own,
and who is far away has the time that its round trip takes.

Units:   counts.
Errors:  none.
"""

from p2pswarm.net.guard.fair_places import FairPlaces
from p2pswarm.net.os.address_groups import address_groups


class HandshakeLimiter:
    """The connections in handshake; each has a number, its ticket."""

    def __init__(self, silent_max: int, answered_max: int) -> None:
        self._silent_max = silent_max
        self._answered_max = answered_max
        self._silent: FairPlaces[int] = FairPlaces()
        self._answered: FairPlaces[int] = FairPlaces()
        self._groups: dict[int, tuple[str, ...]] = {}
        self._next = 0

    def enter(self, host: str) -> tuple[int, int | None]:
        """The ticket of a new connection, and the ticket of the one that it displaces, if any."""
        ticket = self._next
        self._next += 1
        self._groups[ticket] = address_groups(host)
        return ticket, self._place(ticket, self._silent, self._silent_max)

    def answered(self, ticket: int) -> int | None:
        """Note that a first message was complete; returns the ticket that it displaces, if any."""
        if ticket not in self._silent:
            return None
        self._silent.remove(ticket)
        return self._place(ticket, self._answered, self._answered_max)

    def has_answer(self, ticket: int) -> bool:
        """Whether a connection was answered."""
        return ticket in self._answered

    def leave(self, ticket: int) -> None:
        """Forget a handshake that has succeeded or failed, or was displaced."""
        self._silent.remove(ticket)
        self._answered.remove(ticket)
        self._groups.pop(ticket, None)

    def _place(self, ticket: int, places: FairPlaces[int], most: int) -> int | None:
        places.add(ticket, self._groups[ticket])
        if len(places) <= most:
            return None
        displaced = next(places.next_to_go())
        self.leave(displaced)
        return displaced
