"""A socket that hears what is sent to a group of hosts.

Several programs of a machine may listen at one port of a group: each gets its own copy.

Units:   none.
Errors:  none: None where there can be no such socket.
Source:  ip(7); RFC 3493 5.2 for IPv6.
"""

import ipaddress
import socket


def group_socket(group: str, port: int, own_host: str) -> socket.socket | None:
    """A UDP socket for a group, on the network of `own_host`; None if the system refuses."""
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
