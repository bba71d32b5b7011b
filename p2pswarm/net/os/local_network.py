"""The network of this machine: its gateway, its own address, and groups of hosts.

Linux tells its routes in files, Windows by a function, macOS by a command. Where none of them can
be asked, the gateway of a private network is assumed to be the first address of the /24, as in
nearly every home. What is not known is None.

Source:  proc(5) of /proc/net/route, and the kernel's net/ipv6/route.c for ipv6_route; route(8) of
         BSD; GetBestRoute2 and MIB_IPFORWARD_ROW2 in netioapi.h; RFC 1918; ip(7) and RFC 3493 5.2
         for groups.
"""

import contextlib
import ctypes
import ipaddress
import socket
import struct
import subprocess
import sys
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
ROUTE_COMMAND = ("/sbin/route", "-n", "get")
COMMAND_S = 1.0  # it asks the kernel and takes milliseconds
ROW_BYTES = 104
_NEXT_HOP = 44  # after the interface's two numbers, and a prefix of 32 bytes with its length
_FAMILY, _HOST4, _HOST6 = struct.Struct("<H"), struct.Struct("4s"), struct.Struct("<16sI")
_ADDRESS_BYTES = 28  # of SOCKADDR_INET, the union of both families'
_WINDOWS_IPV4, _WINDOWS_IPV6 = 2, 23


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


def gateway_in_answer(answer: str) -> str | None:
    """The gateway in what `route -n get default` prints; one of a link has its interface."""
    for line in answer.splitlines()[:ROUTES_MAX]:
        key, _, value = line.partition(":")
        if key.strip() == "gateway":
            try:
                ipaddress.ip_address(value.strip())
            except ValueError:
                return None  # `link#4`: the network is one hop
            return value.strip()
    return None


def gateway_in_row(row: bytes) -> str | None:
    """The next hop in a MIB_IPFORWARD_ROW2; a link-local one comes with its interface's number."""
    (family,) = _FAMILY.unpack_from(row, _NEXT_HOP)
    if family == _WINDOWS_IPV4:
        (host,) = _HOST4.unpack_from(row, _NEXT_HOP + 4)
        found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(host)
        zone = ""
    elif family == _WINDOWS_IPV6:
        host, scope = _HOST6.unpack_from(row, _NEXT_HOP + 8)
        found = ipaddress.IPv6Address(host)
        zone = f"%{scope}" if found.is_link_local and scope else ""
    else:
        return None
    return None if found.is_unspecified else f"{found}{zone}"


def row_address(host: str) -> bytes:
    """A host as SOCKADDR_INET."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        packed = _FAMILY.pack(_WINDOWS_IPV4) + bytes(2) + address.packed
    else:
        packed = _FAMILY.pack(_WINDOWS_IPV6) + bytes(6) + address.packed
    return packed.ljust(_ADDRESS_BYTES, b"\0")


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
    family = family_of(own_host)
    try:
        return _default_gateway(family)
    except (OSError, subprocess.SubprocessError):
        return assumed_gateway(own_host) if family == IPV4 else None


if sys.platform == "win32":

    def _default_gateway(family: int) -> str | None:
        """The next hop towards a far host, by GetBestRoute2."""
        towards = ctypes.create_string_buffer(row_address(FAR_HOSTS[family]))
        row = ctypes.create_string_buffer(ROW_BYTES)
        source = ctypes.create_string_buffer(_ADDRESS_BYTES)
        library = ctypes.WinDLL("iphlpapi")
        failed = library.GetBestRoute2(None, 0, None, towards, 0, row, source)
        return None if failed else gateway_in_row(row.raw)
elif sys.platform == "darwin":

    def _default_gateway(family: int) -> str | None:
        """The gateway that `route` names."""
        kind = "-inet6" if family == IPV6 else "-inet"
        done = subprocess.run(  # noqa: S603  a command of the system
            (*ROUTE_COMMAND, kind, "default"),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return gateway_in_answer(done.stdout)
else:

    def _default_gateway(family: int) -> str | None:
        """The gateway of the kernel's table."""
        if family == IPV6:
            return gateway6_in(ROUTES6.read_text())
        return gateway_in(ROUTES.read_text())


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
