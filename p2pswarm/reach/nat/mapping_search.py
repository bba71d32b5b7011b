"""A lease: a port of the router that it forwards to us, how it is sought, kept and returned.

Errors:  BadMessage for an answer that is none; Refused if the router says no.
Source:  RFC 6887 section 11, RFC 6886 section 3.3, WANIPConnection:1, WANIPv6FirewallControl:1;
         budgets in docs/reachability.md section 5.
"""

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from p2pswarm.base.errors import BadMessage, Refused
from p2pswarm.base.ids import Address
from p2pswarm.reach.nat import nat_pmp, pcp, upnp

LIFETIME_S = 7200  # RFC 6886 section 3.3 recommends it
LIFETIME_MIN_S, LIFETIME_MAX_S = 120, 86_400  # RFC 6887 section 15: what a router should grant
NO_HOST, NO_HOST6 = "0.0.0.0", "::"  # noqa: S104  no suggestion


class MappingProtocol(Enum):
    """The protocol by which a router is asked for a port."""

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
    """The address that is to be reached, and the router before it."""

    gateway: str
    own_host: str
    port: int
    nonce: bytes
    """Of PCP; the same for all that concerns one mapping."""

    @property
    def ipv6(self) -> bool:
        """True if it is a firewall of IPv6 that is to let others in: nothing is translated."""
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
    """The router's name for this opening of its firewall; None for anything else."""

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
                    arguments = {"UniqueID": str(self.pinhole), "NewLeaseTime": str(LIFETIME_S)}
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
                    arguments = {"UniqueID": str(self.pinhole)}
                    return soap_call(number, self.control, "DeletePinhole", arguments)
                port = str(self.external.port)
                arguments = {"NewRemoteHost": "", "NewExternalPort": port, "NewProtocol": "TCP"}
                return soap_call(number, self.control, "DeletePortMapping", arguments)

    def answered_by(self, sender: Address) -> bool:
        """Return whether a packet from there may answer a renewal."""
        by_datagram = self.protocol is not MappingProtocol.UPNP
        return by_datagram and sender == Address(self.place.gateway, pcp.PORT)

    def moved(self, data: bytes) -> bool:
        """Return whether a packet of NAT-PMP names another outside address of the router."""
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


REPEAT_S = 0.25  # RFC 6886 section 3.1: the first pause
DATAGRAMS_S = 0.5  # for PCP and NAT-PMP: a router is a millisecond away
BUDGET_S = 2.0  # for all; UPnP's first answer may take a second (MX)
LOCATIONS_MAX = 4
PORTS_MAX = 4  # outside ports that UPnP tries: the listening one and three random ones
PORT_LEAST, PORTS = 1024, 64_512  # the random ones: 1024..65535
CALLS_MAX = 16  # of one search, whatever the router answers
DESCRIPTION, HOST, ADD = "description", "host", "add"  # what a call is for


class LeaseSearch:
    """Asks a router for a port by PCP, NAT-PMP and UPnP beside each other.

    All three begin at once, and only one makes a mapping: a router keeps one table for them, where
    returning a port by one protocol takes it from the others. PCP asks for the mapping with its
    first packet. NAT-PMP follows when PCP has refused or is late, UPnP when both have failed.

    It reads at most LOCATIONS_MAX routers' descriptions, tries PORTS_MAX outside ports, and has one
    call under way.
    """

    def __init__(
        self, place: Place, entropy: Callable[[int], bytes], numbers: Iterator[int], now_s: float
    ) -> None:
        """`entropy`: returns that many random bytes; `numbers`: for calls, each used once."""
        self.lease: Lease | None = None
        """The lease that was found."""
        self.over = False
        """True if the search has ended, with a lease or without."""
        self.refusals: dict[str, str] = {}
        """Reason of each protocol that gave nothing, as far as the router has said."""
        self._place = place
        self._entropy = entropy
        self._numbers = numbers
        self._begun_s = now_s
        self._repeated = False
        self._pcp_refused = False
        self._pmp_host: str | None = None
        self._pmp_asked_s: float | None = None
        self._pmp_refused = place.ipv6  # NAT-PMP is of IPv4 alone
        self._datagrams_over = False
        """True if PCP and NAT-PMP have had their chance."""
        self._locations: list[str] = []
        self._tried = 0
        """The number of locations that have been fetched."""
        self._control: upnp.Control | None = None
        self._external_host = place.own_host if place.ipv6 else None
        """The router's; of IPv6 nothing is translated."""
        self._external_port = place.port
        self._lifetime_s = LIFETIME_S
        self._ports_tried = 0
        self._calls = 0
        self._number = 0
        self._calling = ""
        """The purpose of the call under way; empty if there is none."""
        self._outputs: list[Output] = []
        self._ask()
        targets = (*upnp.FIREWALLS, upnp.TARGETS[1]) if place.ipv6 else upnp.TARGETS
        for target in targets:
            for host in (upnp.SEARCH_GROUP6 if place.ipv6 else upnp.SEARCH_GROUP, place.gateway):
                to = Address(host, upnp.SEARCH_PORT)
                self._outputs.append(SendDatagram(upnp.search(target, ipv6=place.ipv6), to))

    # what it is told

    def on_datagram(self, data: bytes, sender: Address, now_s: float) -> None:
        """A packet came by UDP."""
        if self.over or sender.host != self._place.gateway or self._calling == ADD:
            return
        try:
            if sender.port != pcp.PORT:
                self._on_search_answer(data)
            elif data[:1] == bytes((pcp.VERSION,)) or data[:2] == pcp.OLD_ANSWER:
                self._by_pcp(data)
            else:
                self._by_pmp(data)
        except BadMessage:  # somebody in our network sends garbage, or a router's answer to another
            return
        self._go_on(now_s)

    def on_reply(self, number: int, status: int, data: bytes | None, now_s: float) -> None:
        """A call has ended; `data` is None if nothing came."""
        if self.over or number != self._number or not self._calling:
            return
        purpose, self._calling = self._calling, ""
        try:
            self._read(purpose, status, data)
        except upnp.SoapRefusal as refusal:
            self._on_refusal(refusal)
        except BadMessage as error:
            self._on_upnp_failure(str(error))
        self._go_on(now_s)

    def on_deadline(self, now_s: float) -> None:
        """Repeat, go on, or give up, as the time says."""
        if not self.over:
            if not self._repeated and now_s >= self._begun_s + REPEAT_S:
                self._repeated = True
                self._ask()
            self._go_on(now_s)

    # what it asks for

    def drain(self) -> list[Output]:
        """Return the packets to send and the calls to make."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def next_deadline_s(self) -> float | None:
        """Return when `on_deadline` is due; None when the search is over."""
        if self.over:
            return None
        if not self._repeated:
            return self._begun_s + REPEAT_S
        if not self._datagrams_over:
            return self._datagrams_until_s()
        return self._begun_s + BUDGET_S

    # PCP and NAT-PMP

    def _ask(self) -> None:
        place = self._place
        if not self._pcp_refused:
            wanted = Address(NO_HOST6 if place.ipv6 else NO_HOST, place.port)
            self._outputs.append(place.datagram(pcp_request(place, wanted, LIFETIME_S)))
        if self._pmp_host is None and not self._pmp_refused:
            self._outputs.append(place.datagram(nat_pmp.address_request()))

    def _by_pcp(self, data: bytes) -> None:
        try:
            self._found(pcp_lease(self._place, data))
        except Refused as refusal:
            self._pcp_refused = True
            self.refusals["PCP"] = str(refusal)

    def _by_pmp(self, data: bytes) -> None:
        answer = nat_pmp.read_answer(data)
        if isinstance(answer, nat_pmp.OutsideHost):
            self._pmp_host = self._pmp_host or outside_host(answer.host)
            return
        if self._pmp_host is None or self._pmp_asked_s is None:
            if isinstance(answer, nat_pmp.PmpRefusal):
                self._pmp_refused = True
                self.refusals["NAT-PMP"] = f"NAT-PMP result {answer.result}"
            return
        try:
            self._found(pmp_lease(self._place, answer, self._pmp_host))
        except Refused as refusal:
            self._pmp_refused = True
            self.refusals["NAT-PMP"] = str(refusal)

    def _datagrams_until_s(self) -> float:
        if self._pmp_asked_s is None:
            return self._begun_s + DATAGRAMS_S
        return max(self._begun_s + DATAGRAMS_S, self._pmp_asked_s + REPEAT_S)

    # UPnP

    def _on_search_answer(self, data: bytes) -> None:
        own_host = self._place.own_host if self._place.ipv6 else ""
        url = upnp.read_search_answer(data, self._place.gateway, own_host)
        if url not in self._locations and len(self._locations) < LOCATIONS_MAX:
            self._locations.append(url)

    def _read(self, purpose: str, status: int, data: bytes | None) -> None:
        if data is None:
            raise BadMessage("UPnP: the router does not answer its own address")
        if purpose == DESCRIPTION:
            url = self._locations[self._tried - 1]
            if status != 200:  # noqa: PLR2004
                raise BadMessage(f"UPnP: HTTP status {status}")
            self._control = self._control_in(data, url)
        elif purpose == HOST:
            host = upnp.read_reply(status, data, "NewExternalIPAddress")
            self._external_host = outside_host(host)
        elif self._place.ipv6:
            pinhole = upnp.read_pinhole(status, data)
            external = Address(self._place.own_host, self._place.port)
            lease = _lease(self._place, MappingProtocol.UPNP, external, LIFETIME_S)
            self._found(replace(lease, control=self._control, pinhole=pinhole))
        else:
            assert self._external_host is not None
            upnp.read_reply(status, data)
            external = Address(self._external_host, self._external_port)
            lifetime_s = self._lifetime_s
            lease = _lease(self._place, MappingProtocol.UPNP, external, lifetime_s or LIFETIME_S)
            self._found(replace(lease, control=self._control, permanent=not lifetime_s))

    def _control_in(self, data: bytes, url: str) -> upnp.Control:
        place = self._place
        if place.ipv6:
            wanted, own_host = upnp.FIREWALLS, place.own_host
            return upnp.read_description(data, url, place.gateway, wanted, own_host)
        return upnp.read_description(data, url, place.gateway)

    def _on_refusal(self, refusal: upnp.SoapRefusal) -> None:
        if refusal.code == upnp.ONLY_PERMANENT and self._lifetime_s:
            self._lifetime_s = 0
        elif refusal.code == upnp.CONFLICT and self._ports_tried < PORTS_MAX:
            drawn = int.from_bytes(self._entropy(4)) % PORTS
            self._external_port = PORT_LEAST + drawn
        else:
            self._on_upnp_failure(str(refusal))

    def _on_upnp_failure(self, why: str) -> None:
        """Go on with another router that has answered, if there is one."""
        self.refusals["UPnP"] = why
        self._control = None
        self._external_host = self._place.own_host if self._place.ipv6 else None

    def _call(self, purpose: str, call: CallRouter) -> None:
        self._calling = purpose
        self._number = call.number
        self._calls += 1
        self._outputs.append(call)

    # all

    def _found(self, lease: Lease) -> None:
        self.lease = lease
        self.over = True

    def _go_on(self, now_s: float) -> None:
        """Do whatever has become possible; end when time or protocols have run out."""
        if self.over:
            return
        if now_s >= self._begun_s + BUDGET_S or self._calls >= CALLS_MAX:
            self.over = True
            return
        refused = self._pcp_refused and self._pmp_refused
        self._datagrams_over = refused or now_s >= self._datagrams_until_s()
        pmp_turn = self._pcp_refused or self._repeated
        if self._pmp_host is not None and self._pmp_asked_s is None and pmp_turn:
            self._pmp_asked_s = now_s
            request = nat_pmp.map_request(self._place.port, self._place.port, LIFETIME_S)
            self._outputs.append(self._place.datagram(request))
        if not self._calling:
            self._call_next()

    def _call_next(self) -> None:
        number = next(self._numbers)
        if self._control is None:
            if self._tried < len(self._locations):
                self._tried += 1
                self._call(DESCRIPTION, CallRouter(number, self._locations[self._tried - 1]))
        elif self._external_host is None:
            self._call(HOST, soap_call(number, self._control, "GetExternalIPAddress", {}))
        elif self._datagrams_over and self._place.ipv6:
            place = self._place
            arguments = upnp.pinhole_arguments(place.own_host, place.port, LIFETIME_S)
            self._call(ADD, soap_call(number, self._control, "AddPinhole", arguments))
        elif self._datagrams_over:
            self._ports_tried += 1
            port, lifetime_s = self._external_port, self._lifetime_s
            self._call(ADD, add_call(number, self._control, self._place, port, lifetime_s))
