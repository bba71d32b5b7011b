"""The network of this machine: its gateway, its own address, and groups of hosts.

On Linux the kernel tells its routes. Elsewhere the gateway of a private network is assumed to be
the first address of the /24, as in nearly every home. What is not known is None.

Source:  proc(5) of /proc/net/route, and the kernel's net/ipv6/route.c for ipv6_route; RFC 1918;
         ip(7) and RFC 3493 5.2 for groups.
"""

import contextlib
import ipaddress
import socket
import struct
from pathlib import Path

from p2pswarm.base.ids import Address

IPV4, IPV6 = int(socket.AF_INET), int(socket.AF_INET6)
ROUTES, ROUTES6 = Path("/proc/net/route"), Path("/proc/net/ipv6_route")
FAR_HOSTS = {IPV4: "192.0.2.1", IPV6: "2001:db8::1"}
"""RFC 5737 and 3849: addresses that no host has; nothing is sent there."""
DISCARD_PORT = 9
ROUTES_MAX = 4096  # lines that are read: a router of the Internet's core has no place here
_UP, _GATEWAY = 0x1, 0x2
_COLUMNS = 8
_COLUMNS6 = 10


def gateway_in(routes: str) -> str | None:
    """The gateway of the default route of least metric in the text of /proc/net/route."""
    found: list[tuple[int, str]] = []
    for line in routes.splitlines()[1 : ROUTES_MAX + 1]:
        columns = line.split()
        if len(columns) < _COLUMNS:
            continue
        try:
            target, gateway, flags, mask = (int(columns[at], 16) for at in (1, 2, 3, 7))
            metric = int(columns[6])
        except ValueError:
            continue
        if target == mask == 0 and flags & (_UP | _GATEWAY) == _UP | _GATEWAY and gateway < 2**32:
            found.append((metric, socket.inet_ntoa(struct.pack("=I", gateway))))
    return min(found)[1] if found else None


def gateway6_in(routes: str) -> str | None:
    """The same in the text of /proc/net/ipv6_route; a link-local one comes with its interface."""
    found: list[tuple[int, str]] = []
    for line in routes.splitlines()[:ROUTES_MAX]:
        columns = line.split()
        if len(columns) < _COLUMNS6:
            continue
        try:
            target, bits, hop, metric, flags = (int(columns[at], 16) for at in (0, 1, 4, 5, 8))
            gateway = ipaddress.IPv6Address(hop)
        except ValueError:
            continue
        if target == bits == 0 and hop and flags & (_UP | _GATEWAY) == _UP | _GATEWAY:
            zone = f"%{columns[9]}" if gateway.is_link_local else ""
            found.append((metric, f"{gateway}{zone}"))
    return min(found)[1] if found else None


def assumed_gateway(own_host: str) -> str | None:
    """The first address of the /24 of a private address."""
    address = ipaddress.ip_address(own_host)
    if address.version != 4 or not address.is_private or address.is_loopback:  # noqa: PLR2004
        return None
    first = next(ipaddress.ip_network(f"{own_host}/24", strict=False).hosts())
    return None if first == address else str(first)


def gateway(own_host: str) -> str | None:
    """The gateway of this machine in the family of `own_host`, its own address.

    Where routes are not told, that of a private IPv4 network is assumed, and that of IPv6 unknown.
    """
    if family_of(own_host) == IPV6:
        try:
            return gateway6_in(ROUTES6.read_text())
        except OSError:
            return None
    try:
        return gateway_in(ROUTES.read_text())
    except OSError:
        return assumed_gateway(own_host)


def own_host(family: int, towards: str = "") -> str | None:
    """This machine's address towards a host or, if none is named, the Internet; None without."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((towards or FAR_HOSTS[family], DISCARD_PORT))
        host = str(probe.getsockname()[0])  # connecting chose a route and sent nothing
        return None if ipaddress.ip_address(host.partition("%")[0]).is_loopback else host
    return None


def family_of(host: str) -> int:
    """The address family of a host by number."""
    return IPV6 if ":" in host else IPV4


def is_here(host: str) -> bool:
    """Return whether a host, a number, is this machine: a dial from there proves nothing."""
    if ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return True
    return own_host(family_of(host), host) == host


def families(bound: Address) -> tuple[int, ...]:
    """The address families in which a node that listens at `bound` can be dialled."""
    return (IPV4, IPV6) if bound.host == "::" else (family_of(bound.host),)


def group_socket(group: str, port: int, own_host: str) -> socket.socket | None:
    """A UDP socket for a group, on the network of `own_host`; None if the system refuses.

    Several programs of a machine may listen at one port of a group: each gets its own copy.
    """
    try:
        packed = ipaddress.IPv4Address(own_host).packed
    except ValueError:
        return None  # IPv6 has groups by interface, and nobody needs one here
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
        member = ipaddress.IPv4Address(group).packed + packed
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    except OSError:
        sock.close()
        return None
    return sock
