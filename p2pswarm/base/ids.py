"""Peer ids, the XOR distance between them, and network addresses.

An id is the hash of a public key, so nobody can choose or forge one. The DHT
measures the distance of two ids as the XOR of their 256 bits.

Units:   ids are 32 bytes; distances are integers in [0, 2**256).
Errors:  ValueError for text or bytes that are not an id or an address.
Source:  Maymounkov and Mazieres, "Kademlia" (2002), section 2.1; RFC 4648 base32; RFC 3986 3.2.2
         for brackets; RFC 1035 2.3.4 for the lengths of names; RFC 4007 11 for zones; RFC 4291
         2.5.5.2 for IPv4 in IPv6.
"""

import base64
import hashlib
import ipaddress
import re
from dataclasses import dataclass
from typing import Self

PEER_ID_BYTES = 32
PEER_TAG = b"p2pswarm-peer-1:"  # separates this hash from every other use of the key
PORT_MAX = 65_535
PORT_DIGITS_MAX = 5
HOST_CHARS_MAX = 253
HOST_NAME = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)
ZONE = re.compile(r"[\w.:@~-]{1,63}", re.ASCII)
WEB_SCHEMES = ("ws", "wss")  # WebSocket, without and with TLS
SHORT_CHARS = 8  # 40 bits: enough to tell peers apart in a log
SHOWN_CHARS = 60  # at most so much of a wrong address, so that a message stays one line


@dataclass(frozen=True, slots=True, order=True)
class PeerId:
    """SHA-256 of a tag and an Ed25519 public key."""

    raw: bytes
    """32 bytes."""

    def __post_init__(self) -> None:
        if len(self.raw) != PEER_ID_BYTES:
            raise ValueError(f"a peer id has {PEER_ID_BYTES} bytes, not {len(self.raw)}")

    @classmethod
    def of_key(cls, public_key: bytes) -> Self:
        """The id of the holder of `public_key`, 32 raw Ed25519 bytes."""
        return cls(hashlib.sha256(PEER_TAG + public_key).digest())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` printed."""
        padded = text.upper() + "=" * (-len(text) % 8)
        try:
            return cls(base64.b32decode(padded))
        except ValueError as error:
            raise ValueError(f"{_shown(text)} is not a peer id") from error

    def distance(self, other: bytes) -> int:
        """XOR distance to another id or a DHT key of 32 bytes."""
        return int.from_bytes(self.raw) ^ int.from_bytes(other)

    @property
    def short(self) -> str:
        """The first SHORT_CHARS characters, for logs."""
        return str(self)[:SHORT_CHARS]

    def __str__(self) -> str:
        return base64.b32encode(self.raw).decode().rstrip("=").lower()


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host, by name or number, and a TCP port; and how a peer is reached from there.

    A peer behind a relay has the relay's host and port (docs/relays.md).
    """

    host: str
    """Written without brackets; an IPv6 address may end in a zone, as in fe80::1%eth0.

    An IPv4 address that is written as an IPv6 one, ::ffff:203.0.113.7, becomes the IPv4 address:
    so a socket for both families names it, and one host must not count under two names.
    """
    port: int
    circuit: bytes = b""
    """The id of the peer that is dialled through the relay at this place; empty: no relay."""
    web: str = ""
    """Scheme of WebSocket, one of WEB_SCHEMES; empty: TCP itself."""

    def __post_init__(self) -> None:
        if self.circuit and len(self.circuit) != PEER_ID_BYTES:
            raise ValueError(f"a peer id has {PEER_ID_BYTES} bytes, not {len(self.circuit)}")
        if self.web and self.web not in WEB_SCHEMES:
            raise ValueError(f"{_shown(self.web)} is none of {', '.join(WEB_SCHEMES)}")
        if ":" in self.host:
            object.__setattr__(self, "host", _canonical_ipv6(self.host))
        elif not _is_name(self.host):
            raise ValueError(f"{_shown(self.host)} is not a host")
        if not 0 <= self.port <= PORT_MAX:
            raise ValueError(f"a port lies in 0..{PORT_MAX}, not {self.port}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read HOST:PORT or [IPV6]:PORT, or either after ws:// or wss://, or before /PEER."""
        stripped = text.strip()
        scheme, separator, rest = stripped.partition("://")
        if separator and scheme not in WEB_SCHEMES:
            raise ValueError(f"{_shown(text)}: leave out {_shown(scheme + separator)}{_left(rest)}")
        place, slash, peer = (rest if separator else stripped).partition("/")
        host, colon, port = place.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit():
            raise ValueError(f"{_shown(text)} is not HOST:PORT, for example 203.0.113.7:4000")
        if len(port) > PORT_DIGITS_MAX:
            raise ValueError(f"a port lies in 0..{PORT_MAX}, not {_shown(port)}")
        if not host:
            raise ValueError(f"{_shown(text)} has no host, for example 203.0.113.7:4000")
        bracketed = host.startswith("[") and host.endswith("]")
        if "," in host:
            raise ValueError(
                f"{_shown(text)} is several addresses: give each by itself, as a flag or an entry "
                "of the list"
            )
        if ":" in host and not bracketed:
            raise ValueError(f"{_shown(text)}: put an IPv6 address in brackets, [::1]:4000")
        if bracketed and not _is_ipv6(host[1:-1]):
            raise ValueError(f"{_shown(text)}: brackets are for an IPv6 address, [::1]:4000")
        circuit = PeerId.parse(peer).raw if slash else b""
        web = scheme if separator else ""
        return cls(host[1:-1] if bracketed else host, int(port), circuit, web)

    @property
    def place(self) -> "Address":
        """Return what is dialled itself: the relay, if there is one."""
        return Address(self.host, self.port, web=self.web) if self.circuit else self

    def through(self, peer: PeerId) -> "Address":
        """The address of a peer that is reached through the relay at this address."""
        return Address(self.host, self.port, peer.raw, self.web)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = f"{self.web}://" if self.web else ""
        return f"{scheme}{host}:{self.port}" + (f"/{PeerId(self.circuit)}" if self.circuit else "")


@dataclass(frozen=True, slots=True, order=True)
class Contact:
    """A peer and where to dial it."""

    peer: PeerId | None
    """None if only an address is known, as with a bootstrap flag."""
    address: Address


def _canonical_ipv6(host: str) -> str:
    """The host, or the IPv4 address that it maps (RFC 4291 2.5.5.2); ValueError if it is none."""
    if not _is_ipv6(host):
        raise ValueError(f"{_shown(host)} is not a host")
    mapped = ipaddress.IPv6Address(host.partition("%")[0]).ipv4_mapped
    return host if mapped is None else str(mapped)


def _is_ipv6(host: str) -> bool:
    number, percent, zone = host.partition("%")
    if percent and not ZONE.fullmatch(zone):
        return False
    try:
        ipaddress.IPv6Address(number)
    except ValueError:
        return False
    return True


def _is_name(host: str) -> bool:
    """Return whether a resolver accepts the name; Python's encoder raises for wrong lengths."""
    return len(host) <= HOST_CHARS_MAX and HOST_NAME.fullmatch(host) is not None


def _left(rest: str) -> str:
    """The end of an error text: the address without scheme and path, if one is left."""
    place = rest.partition("/")[0]
    return f", write {_shown(place)}" if ":" in place else " and write HOST:PORT"


def _shown(text: str) -> str:
    """Text of unknown origin, quoted and short, whatever its characters become when quoted."""
    quoted = repr(text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "...")
    most = SHOWN_CHARS + 2
    return quoted if len(quoted) <= most else quoted[: most - 4] + "..." + quoted[0]
