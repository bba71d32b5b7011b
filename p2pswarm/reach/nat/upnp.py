"""The texts of UPnP: finding the router, its description, calls to port forwarding and firewall.

Whoever is in the local network may answer a search. So only the gateway's own answers are read, and
only addresses at the gateway are called. A gateway of IPv6 is known by its address of the link, and
often names one that it has in our own network: that is called, too.

Source:  UPnP Device Architecture 1.1 (1.3 discovery, 2 description, 3.2 control);
         WANIPConnection:1 and :2, WANPPPConnection:1, WANIPv6FirewallControl:1.
"""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit
from xml.parsers import expat
from xml.sax.saxutils import escape

from p2pswarm.base.errors import BadMessage, Refused

XML_BYTES_MAX = 64 * 1024  # descriptions of routers have 2 to 20 KiB
DEPTH_MAX = 32
ELEMENTS_MAX = 2048
TEXT_CHARS_MAX = 1024  # of one element: addresses, names, error texts


@dataclass(slots=True)
class Element:
    """An element: its name without namespace, its own text, and what is in it."""

    name: str
    text: str = ""
    children: list["Element"] = field(default_factory=list)

    def find_all(self, name: str) -> Iterator["Element"]:
        """Every element of a name below this one, in the document's order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.find_all(name)

    def text_of(self, name: str) -> str:
        """The text of the first element of a name below this one; empty if there is none."""
        return next((each.text.strip() for each in self.find_all(name)), "")


class _ElementBuilder:
    """Builds the elements while expat reads."""

    def __init__(self) -> None:
        self.root = Element("")
        self._open = [self.root]
        self._elements = 0

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._elements += 1
        if len(self._open) > DEPTH_MAX or self._elements > ELEMENTS_MAX:
            raise BadMessage(f"XML: over {DEPTH_MAX} deep, or over {ELEMENTS_MAX} elements")
        element = Element(name.rpartition(":")[2])
        self._open[-1].children.append(element)
        self._open.append(element)

    def end(self, _name: str) -> None:
        self._open.pop()

    def text(self, text: str) -> None:
        element = self._open[-1]
        if len(element.text) + len(text) > TEXT_CHARS_MAX:
            raise BadMessage(f"XML: a text of more than {TEXT_CHARS_MAX} characters")
        element.text += text


def read_xml(data: bytes) -> Element:
    """The document's root, as the only child of a nameless element; BadMessage if it is none.

    A document type ends the reading, and so no entity is ever defined, expanded or fetched. Size,
    depth and the number of elements are bounded. Namespaces are dropped, because routers mix them.

    Source: https://github.com/tiran/defusedxml: what an XML reader must not do for strangers.
    """
    if len(data) > XML_BYTES_MAX:
        raise BadMessage(f"XML: {len(data)} bytes, over {XML_BYTES_MAX}")
    reader = _ElementBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    try:  # as text, so that expat never looks for an encoding that the document names
        parser.Parse(data.decode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise BadMessage(f"XML: {error}") from error
    return reader.root


def _refuse(*_: object) -> None:
    raise BadMessage("XML: a document type, which may define entities")


SEARCH_PORT = 1900
SEARCH_GROUP = "239.255.255.250"
SEARCH_GROUP6 = "ff02::c"  # of this link; UPnP Device Architecture 1.1, annex A
ANSWER_BYTES_MAX = 2048
PATH_CHARS_MAX = 256
TARGETS = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)
SERVICES = (
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
FIREWALLS = ("urn:schemas-upnp-org:service:WANIPv6FirewallControl:1",)
LINK_LOCAL = "fe80:"
TCP = 6  # IANA's number
PINHOLE_MAX = 65_535  # the largest id of a pinhole: a ui2
DESCRIPTION = "p2pswarm"  # what a person sees in the router's table
CONFLICT = 718  # the outside port is another machine's
ONLY_PERMANENT = 725
_STATUS = re.compile(rb"HTTP/1\.[01] 200\b")
_PATH = re.compile(rf"/[!-~]{{0,{PATH_CHARS_MAX - 1}}}", re.ASCII)
_PORT_MAX = 65535


class SoapRefusal(Refused):
    """The router understood and said no."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"UPnP error {code}: {detail}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Control:
    """Address at which a router takes calls, and the service as which it does."""

    url: str
    service: str


def search(target: str, *, ipv6: bool = False) -> bytes:
    """Ask who is a router."""
    group = f"[{SEARCH_GROUP6}]" if ipv6 else SEARCH_GROUP
    lines = (
        "M-SEARCH * HTTP/1.1",
        f"HOST: {group}:{SEARCH_PORT}",
        'MAN: "ssdp:discover"',
        "MX: 1",
        f"ST: {target}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def read_search_answer(data: bytes, gateway: str, own_host: str = "") -> str:
    """The URL of the description of the router at `gateway`."""
    if len(data) > ANSWER_BYTES_MAX or not _STATUS.match(data):
        raise BadMessage("UPnP: no answer to a search")
    for line in data.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.strip().lower() == b"location":
            return checked_url(value.decode("latin-1").strip(), gateway, own_host)
    raise BadMessage("UPnP: an answer without a location")


def checked_url(url: str, gateway: str, own_host: str = "") -> str:
    """The same URL; BadMessage unless it is plain HTTP at the gateway's own number.

    `own_host`: our address of IPv6, behind a gateway that may have another one in its network.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError as error:
        raise BadMessage(f"UPnP: not a URL: {error}") from error
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.hostname or ""
    there = host == gateway or (gateway.startswith(LINK_LOCAL) and _beside(host, own_host))
    at_gateway = parts.scheme == "http" and there and "@" not in parts.netloc
    if not at_gateway or not 0 < port <= _PORT_MAX or not _PATH.fullmatch(path):
        raise BadMessage("UPnP: an address that is not at the gateway")
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}{path}"


def _beside(host: str, own_host: str) -> bool:
    """Return whether a host is another one of our own network of IPv6."""
    try:
        one, own = ipaddress.IPv6Address(host), ipaddress.IPv6Address(own_host)
    except ValueError:
        return False
    return one != own and one.scope_id is None and int(one) >> 64 == int(own) >> 64


def read_description(
    data: bytes,
    url: str,
    gateway: str,
    wanted_services: Sequence[str] = SERVICES,
    own_host: str = "",
) -> Control:
    """The best service for mappings in the description that was read from `url`."""
    services = list(read_xml(data).find_all("service"))
    for wanted in wanted_services:
        for service in services:
            if service.text_of("serviceType") == wanted:
                path = service.text_of("controlURL")
                return Control(_joined(url, path, gateway, own_host), wanted)
    raise BadMessage("UPnP: the device forwards no ports")


def headers(control: Control, action: str) -> dict[str, str]:
    """The headers of a call."""
    return {
        "Content-Type": 'text/xml; charset="utf-8"',
        "SOAPAction": f'"{control.service}#{action}"',
    }


def call_body(control: Control, action: str, arguments: dict[str, str]) -> bytes:
    """The body of a call."""
    filled = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in arguments.items())
    return (
        '<?xml version="1.0"?>\r\n'
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
        's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
        f'<u:{action} xmlns:u="{control.service}">{filled}</u:{action}>'
        "</s:Body></s:Envelope>"
    ).encode()


def add_arguments(own_host: str, port: int, external_port: int, lifetime_s: int) -> dict[str, str]:
    """The arguments of AddPortMapping, in the order that the service defines."""
    return {
        "NewRemoteHost": "",
        "NewExternalPort": str(external_port),
        "NewProtocol": "TCP",
        "NewInternalPort": str(port),
        "NewInternalClient": own_host,
        "NewEnabled": "1",
        "NewPortMappingDescription": DESCRIPTION,
        "NewLeaseDuration": str(lifetime_s),
    }


def pinhole_arguments(own_host: str, port: int, lifetime_s: int) -> dict[str, str]:
    """The arguments of AddPinhole, in the order that the service defines: anybody may come in."""
    return {
        "RemoteHost": "",
        "RemotePort": "0",
        "InternalClient": own_host,
        "InternalPort": str(port),
        "Protocol": str(TCP),
        "LeaseTime": str(lifetime_s),
    }


def read_pinhole(status: int, data: bytes) -> int:
    """The id of the pinhole that AddPinhole has made; raises SoapRefusal for a refusal."""
    number = read_reply(status, data, "UniqueID")
    short = len(number) <= len(str(PINHOLE_MAX)) and number.isascii() and number.isdigit()
    if not short or int(number) > PINHOLE_MAX:
        raise BadMessage("UPnP: a pinhole without a number")
    return int(number)


def read_reply(status: int, data: bytes, wanted: str = "") -> str:
    """The text of the element `wanted` in a reply; raises SoapRefusal for a refusal."""
    root = read_xml(data)
    code = root.text_of("errorCode")
    if code:
        if not (code.isascii() and code.isdigit() and len(code) <= 4):  # noqa: PLR2004
            raise BadMessage("UPnP: an error without a number")
        raise SoapRefusal(int(code), root.text_of("errorDescription")[:64])
    if status != 200:  # noqa: PLR2004
        raise BadMessage(f"UPnP: HTTP status {status}")
    return root.text_of(wanted) if wanted else ""


def _joined(url: str, path: str, gateway: str, own_host: str) -> str:
    try:
        joined = urljoin(url, path)
    except ValueError as error:
        raise BadMessage(f"UPnP: not a URL: {error}") from error
    return checked_url(joined, gateway, own_host)
