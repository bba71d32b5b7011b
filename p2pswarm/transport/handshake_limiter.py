"""HandshakeLimiter: bounds what strangers cost us before they prove who they are.

A new connection that finds every place taken displaces the one that has been in its
handshake for longest. An honest handshake takes a round trip or two, and a stalled one
is soon the oldest, so a crowd of stalled ones keeps nobody out.

Units:   counts.
Errors:  none that a stranger can cause.
"""

import ipaddress

IPV6_PREFIX_BITS = 64  # what one subscriber is given: its hosts count as one


class HandshakeLimiter:
    """Tickets of connections in handshake, oldest first."""

    def __init__(self, most: int, most_per_host: int) -> None:
        self._most = most
        self._most_per_host = most_per_host
        self._hosts: dict[int, str] = {}
        self._next = 0

    def enter(self, host: str) -> tuple[int, int | None]:
        """A ticket for a new connection, and that of the one displaced by it, if any."""
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
        """The handshake is over, well or not."""
        self._hosts.pop(ticket, None)


def _group(host: str) -> str:
    """Hosts that count as one: an IPv4 address, or an IPv6 network of one subscriber."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a simulated host has a name
        return host
    if address.version == 4:  # noqa: PLR2004
        return host
    return str(ipaddress.ip_network((address.packed[:8] + bytes(8), IPV6_PREFIX_BITS)))
