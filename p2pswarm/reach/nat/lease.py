"""A lease: a port of the router that it forwards to us, and how it is asked for, kept and returned.

Units:   seconds.
Errors:  BadMessage for an answer that is none; Refused if the router says no.
Source:  RFC 6887 section 11, RFC 6886 section 3.3, WANIPConnection:1, WANIPv6FirewallControl:1.
"""

import ipaddress
from dataclasses import dataclass, field, replace
from enum import Enum

from p2pswarm.base.errors import BadMessage, Refused
from p2pswarm.base.ids import Address
from p2pswarm.reach.nat import nat_pmp, pcp, upnp

LIFETIME_S = 7200  # RFC 6886 section 3.3 recommends it
LIFETIME_MIN_S, LIFETIME_MAX_S = 120, 86_400  # RFC 6887 section 15: what a router should grant
NO_HOST, NO_HOST6 = "0.0.0.0", "::"  # noqa: S104  no suggestion


class MappingProtocol(Enum):
    """How a router is asked for a port."""

    PCP = "PCP"
    NAT_PMP = "NAT-PMP"
    UPNP = "UPnP"


@dataclass(frozen=True, slots=True)
class SendDatagram:
    """Send this by UDP."""

    data: bytes
    to: Address


@dataclass(frozen=True, slots=True)
class CallRouter:
    """Fetch a URL of the router, or post to it, and tell the answer under this number."""

    number: int
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """None: a plain GET."""


Output = SendDatagram | CallRouter


@dataclass(frozen=True, slots=True)
class Place:
    """What is to be reached, and the router before it."""

    gateway: str
    own_host: str
    port: int
    nonce: bytes
    """Of PCP; the same for all that concerns one mapping."""

    @property
    def ipv6(self) -> bool:
        """Whether it is a firewall of IPv6 that is to let others in: nothing is translated."""
        return ":" in self.own_host

    def datagram(self, data: bytes) -> SendDatagram:
        """A packet to the router's PCP and NAT-PMP."""
        return SendDatagram(data, Address(self.gateway, pcp.PORT))


@dataclass(frozen=True, slots=True)
class Lease:
    """A port that the router has granted."""

    place: Place
    protocol: MappingProtocol
    external: Address
    lifetime_s: float
    """From when it was granted, within LIFETIME_MIN_S and LIFETIME_MAX_S."""
    control: upnp.Control | None = None
    """Of UPnP alone."""
    permanent: bool = False
    """The router knows no other leases: this one ends when it is returned."""
    pinhole: int | None = None
    """What the router calls this opening of its firewall; None for anything else."""

    def renewal(self, number: int) -> Output:
        """Ask for the same again; a call gets this number."""
        place, external = self.place, self.external
        match self.protocol:
            case MappingProtocol.PCP:
                return place.datagram(pcp_request(place, external, LIFETIME_S))
            case MappingProtocol.NAT_PMP:
                return place.datagram(nat_pmp.map_request(place.port, external.port, LIFETIME_S))
            case MappingProtocol.UPNP:
                lifetime_s = 0 if self.permanent else LIFETIME_S
                assert self.control is not None
                if self.pinhole is not None:
                    arguments = upnp.update_arguments(self.pinhole, LIFETIME_S)
                    return soap_call(number, self.control, "UpdatePinhole", arguments)
                return add_call(number, self.control, place, external.port, lifetime_s)

    def question(self) -> SendDatagram | None:
        """Ask for the router's time, which tells whether it has lost the lease; None by UPnP."""
        match self.protocol:
            case MappingProtocol.PCP:
                return self.place.datagram(pcp.announce_request(self.place.own_host))
            case MappingProtocol.NAT_PMP:
                return self.place.datagram(nat_pmp.address_request())
        return None

    def release(self, number: int) -> Output:
        """Return the port; a call gets this number."""
        place = self.place
        match self.protocol:
            case MappingProtocol.PCP:
                return place.datagram(pcp_request(place, self.external, 0))
            case MappingProtocol.NAT_PMP:
                return place.datagram(nat_pmp.map_request(place.port, 0, 0))
            case MappingProtocol.UPNP:
                assert self.control is not None
                if self.pinhole is not None:
                    arguments = upnp.close_arguments(self.pinhole)
                    return soap_call(number, self.control, "DeletePinhole", arguments)
                arguments = upnp.delete_arguments(self.external.port)
                return soap_call(number, self.control, "DeletePortMapping", arguments)

    def answered_by(self, sender: Address) -> bool:
        """Whether a packet from there may answer a renewal."""
        by_datagram = self.protocol is not MappingProtocol.UPNP
        return by_datagram and sender == Address(self.place.gateway, pcp.PORT)

    def moved(self, data: bytes) -> bool:
        """Whether a packet of NAT-PMP says that the router has another outside address now."""
        if self.protocol is not MappingProtocol.NAT_PMP:
            return False
        try:
            answer = nat_pmp.read_answer(data)
        except BadMessage:
            return False
        return isinstance(answer, nat_pmp.OutsideHost) and answer.host != self.external.host

    def renewed(self, data: bytes) -> "Lease":
        """The lease as the router's answer to a renewal by datagram has it."""
        if self.protocol is MappingProtocol.PCP:
            return pcp_lease(self.place, data)
        answer = nat_pmp.read_answer(data)
        if isinstance(answer, nat_pmp.OutsideHost):
            raise BadMessage("NAT-PMP: an address that nobody asked for")
        return pmp_lease(self.place, answer, self.external.host)


def pcp_request(place: Place, wanted: Address, lifetime_s: int) -> bytes:
    """Ask by PCP for a port."""
    return pcp.map_request(place.nonce, place.own_host, place.port, wanted, lifetime_s)


def pcp_lease(place: Place, data: bytes) -> Lease:
    """The lease in an answer of PCP."""
    answer = pcp.read_answer(data)
    if answer.result == pcp.SUCCESS and (answer.nonce, answer.port) != (place.nonce, place.port):
        raise BadMessage("PCP: an answer to somebody else")
    if answer.external is None:
        raise Refused(f"PCP result {answer.result}")
    return _lease(place, MappingProtocol.PCP, answer.external, answer.lifetime_s)


def pmp_lease(place: Place, answer: nat_pmp.Mapped | nat_pmp.PmpRefusal, host: str) -> Lease:
    """The lease in an answer of NAT-PMP; `host`: the router's outside address."""
    if isinstance(answer, nat_pmp.PmpRefusal):
        raise Refused(f"NAT-PMP result {answer.result}")
    if answer.port != place.port or not answer.lifetime_s:
        raise BadMessage("NAT-PMP: a mapping that nobody asked for")
    external = Address(host, answer.external_port)
    return _lease(place, MappingProtocol.NAT_PMP, external, answer.lifetime_s)


def upnp_lease(place: Place, control: upnp.Control, external: Address, lifetime_s: int) -> Lease:
    """The lease that a call of UPnP has made; lifetime 0: permanent."""
    lease = _lease(place, MappingProtocol.UPNP, external, lifetime_s or LIFETIME_S)
    return replace(lease, control=control, permanent=not lifetime_s)


def pinhole_lease(place: Place, control: upnp.Control, pinhole: int) -> Lease:
    """The lease of a pinhole in a firewall of IPv6: our own address and port."""
    external = Address(place.own_host, place.port)
    lease = _lease(place, MappingProtocol.UPNP, external, LIFETIME_S)
    return replace(lease, control=control, pinhole=pinhole)


def pinhole_call(number: int, control: upnp.Control, place: Place) -> CallRouter:
    """The call of UPnP that opens a firewall of IPv6."""
    arguments = upnp.pinhole_arguments(place.own_host, place.port, LIFETIME_S)
    return soap_call(number, control, "AddPinhole", arguments)


def add_call(
    number: int, control: upnp.Control, place: Place, external_port: int, lifetime_s: int
) -> CallRouter:
    """The call of UPnP that makes a mapping."""
    arguments = upnp.add_arguments(place.own_host, place.port, external_port, lifetime_s)
    return soap_call(number, control, "AddPortMapping", arguments)


def soap_call(
    number: int, control: upnp.Control, action: str, arguments: dict[str, str]
) -> CallRouter:
    """A call of UPnP."""
    body = upnp.call_body(control, action, arguments)
    return CallRouter(number, control.url, upnp.headers(control, action), body)


def outside_host(host: str, *, ipv6: bool = False) -> str:
    """The same host; BadMessage if nobody can have it, as where the router has no line."""
    try:
        address = ipaddress.IPv6Address(host) if ipv6 else ipaddress.IPv4Address(host)
    except ValueError as error:
        raise BadMessage("an outside address that is none") from error
    if address.is_unspecified or address.is_loopback or address.is_multicast or address.is_reserved:
        raise BadMessage(f"an outside address that nobody can have: {address}")
    return host


def _lease(place: Place, protocol: MappingProtocol, external: Address, lifetime_s: int) -> Lease:
    outside_host(external.host, ipv6=place.ipv6)
    if not external.port:
        raise BadMessage(f"{protocol.value}: port 0")
    within_s = float(min(max(lifetime_s, LIFETIME_MIN_S), LIFETIME_MAX_S))
    return Lease(place, protocol, external, within_s)
