"""Addresses: the groups in which their hosts are counted, and from where they can be dialled.

Source:  RFC 6177: a site gets a /48 to /56; RFC 7422 and the practice of registries for /32;
         RFC 6890 and the registries of special-purpose addresses, as `ipaddress` has them.
"""

import ipaddress
from enum import IntEnum
from functools import lru_cache

from p2pswarm.base.ids import Address

IPV4_PREFIXES = (16, 24, 32)  # a provider's range, the smallest routed network, a host
IPV6_PREFIXES = (32, 48, 56)  # a provider, a site, a home: it gets a /56, a machine a whole /64
NAMES = "name"
PROXIES = ("127.0.0.1", "::1")
"""Where a web server of this machine dials from that stands in front of us."""
SEEN_HOSTS = 4096  # remembered at once: parsing an address takes 5 us


@lru_cache(maxsize=SEEN_HOSTS)
def address_groups(host: str) -> tuple[str, ...]:
    """The groups that a host belongs to, the widest first.

    Whoever has one address of a network easily has others of it. So what is scarce is shared
    between networks first, then between the parts of each, then between hosts. IPv4 and IPv6 are
    apart, because IPv6 addresses cost nothing.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return (NAMES, host)
    prefixes = IPV4_PREFIXES if address.version == 4 else IPV6_PREFIXES  # noqa: PLR2004
    networks = (ipaddress.ip_network((address.packed, bits), strict=False) for bits in prefixes)
    return (f"IPv{address.version}", *map(str, networks))


@lru_cache(maxsize=SEEN_HOSTS)
def network_of(host: str) -> str:
    """The smallest routed network of a host, /24 or /48; a host that is no number stands alone."""
    groups = address_groups(host)
    return host if groups[0] == NAMES else groups[2]


SCOPES_SEEN = 16_384  # hosts whose scope is remembered
LOCAL_NAMES = (".local", ".localhost", ".internal", ".lan", ".home.arpa")


class Scope(IntEnum):
    """From where a host can be dialled."""

    NOWHERE = 0
    """It is no single host's: multicast, broadcast, unspecified, reserved."""
    PRIVATE = 1
    """From its own machine or network: loopback, LAN, link-local, CGNAT, documentation."""
    PUBLIC = 2


def believable(address: Address, least: Scope) -> bool:
    """Return whether to keep and dial an address that a peer names; `least`: its least scope.

    An address is what a peer says of itself or of another. Whoever is believed everything makes
    others dial their own machine, their neighbours' printers, or everybody at once. So addresses
    that no single host has are never taken. Among peers with public addresses, only public ones
    are: those of a private network mean another host to everybody who reads them.

    A name with a dot may be believed among public peers. Where it leads is known when it is
    dialled, not here. So who has a name is believed private addresses, too, as in a lab whose
    machines have names.

    Who is reached through a relay is no server of the DHT, and nobody makes us send HTTP anywhere.
    """
    if address.circuit or address.web:
        return False
    return address.port > 0 and scope_of(address.host) >= max(least, Scope.PRIVATE)


@lru_cache(maxsize=SCOPES_SEEN)
def scope_of(host: str) -> Scope:
    """The scope of a host, by number or name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower().rstrip(".")
        local = "." not in name or name.endswith(LOCAL_NAMES)
        return Scope.PRIVATE if local else Scope.PUBLIC
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_multicast or ip.is_unspecified or (ip.version == 4 and ip.is_reserved):  # noqa: PLR2004
        return Scope.NOWHERE
    return Scope.PUBLIC if ip.is_global else Scope.PRIVATE


def expected_of(host: str) -> Scope:
    """The smallest scope of what a peer at `host` may name; private for a name."""
    named = ":" not in host and not host.rstrip(".").rpartition(".")[2].isdigit()
    return Scope.PRIVATE if named else scope_of(host)


def least_scope(own: Address, seeds: tuple[Address, ...]) -> Scope:
    """The smallest scope that a node believes: public, if it and all of its seeds are public."""
    return min(expected_of(each.host) for each in (own, *seeds))
