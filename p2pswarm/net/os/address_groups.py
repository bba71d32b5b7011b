"""The groups in which hosts are counted: ids are free, and addresses of one network nearly so.

Whoever has one address of a network easily has others of it. So what is scarce is shared
between networks first, then between the parts of each, then between hosts. IPv4 and IPv6 are
apart, because IPv6 addresses cost nothing.

Units:   prefixes in bits.
Errors:  none; a host that is no number, as in a simulation, is a group of its own.
Source:  RFC 6177: a site gets a /48 to /56; RFC 7422 and the practice of registries for /32.
"""

import ipaddress
from functools import lru_cache

IPV4_PREFIXES = (16, 24, 32)  # a provider's range, the smallest routed network, a host
IPV6_PREFIXES = (32, 48, 56)  # a provider, a site, a home: it gets a /56, a machine a whole /64
NAMES = "name"
SEEN_HOSTS = 4096  # remembered at once: parsing an address takes 5 us


@lru_cache(maxsize=SEEN_HOSTS)
def address_groups(host: str) -> tuple[str, ...]:
    """The groups that a host belongs to, the widest first."""
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
