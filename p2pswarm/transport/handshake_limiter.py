"""HandshakeLimiter: limits what peers cost us before they prove who they are.

If a new connection would exceed the limit, it displaces the oldest handshake. An
honest handshake takes one or two round trips, and a stalled one soon is the oldest.
So many stalled handshakes cannot keep an honest peer out.

Units:   counts.
Errors:  none.
"""

import ipaddress

IPV6_PREFIX_BITS = 64  # one subscriber gets a whole /64: its hosts count as one


class HandshakeLimiter:
    """The connections in handshake, oldest first; each has a number, its ticket."""

    def __init__(self, most: int, most_per_host: int) -> None:
        self._most = most
        self._most_per_host = most_per_host
        self._hosts: dict[int, str] = {}
        self._next = 0

    def enter(self, host: str) -> tuple[int, int | None]:
        """The ticket of a new connection, and the ticket of the one that it displaces, if any."""
        group = _group(host)
        same = [ticket for ticket, other in self._hosts.items() if other == group]
        displaced = None
        if len(same) >= self._most_per_host:
            displaced = same[0]
        elif len(self._hosts) >= self._most:
            displaced = next(iter(self._hosts))
        if displaced is not None:
            del self._hosts[displaced]
        ticket = self._next
        self._next += 1
        self._hosts[ticket] = group
        return ticket, displaced

    def leave(self, ticket: int) -> None:
        """Forget a handshake that has succeeded or failed."""
        self._hosts.pop(ticket, None)


def _group(host: str) -> str:
    """The group in which a host is counted: its IPv4 address, or its IPv6 /64 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a simulated host has a name
        return host
    if address.version == 4:  # noqa: PLR2004
        return host
    return str(ipaddress.ip_network((address.packed[:8] + bytes(8), IPV6_PREFIX_BITS)))
