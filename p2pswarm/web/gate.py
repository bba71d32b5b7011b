"""PageGate: who may see the page. It reads, and nothing that it answers changes a run.

Every request passes the same four questions, whatever its path is. So there is no list of
methods or paths that could forget one (CVE-2026-27482 was such a list).

1. Its method is GET or HEAD.
2. Its Host is a name of this page. A foreign site whose name leads to this machine (DNS rebinding)
   is refused here: a browser says the site's name.
3. It has the token, as a cookie or as a bearer. The link that a node prints has it once. The
   answer puts it into a cookie and leads to the same page without it.
4. Only whether the node lives and is ready is told without a token: probes have none.

Source:  RFC 9110; RFC 6265bis, 5.2 (SameSite).
"""

import hmac
import ipaddress
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

TOKEN_BYTES = 24  # 192 bits: nobody guesses it, and a link stays short
TOKEN_CHARS_MAX = 64  # of what a request offers; longer ones are no tokens
HOST_CHARS_MAX = 255  # of a name in DNS
METHODS = ("GET", "HEAD")
PROBES = ("/livez", "/readyz")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
COOKIE_DAYS = 30  # a browser may look again after so long; the token may be another one by then
TOKEN_KEY = "t"  # noqa: S105 - its name in the link
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "p2pswarm",
}
"""What every answer carries: nothing from outside, no frames, no copies."""
OWNERS_ONLY = (
    "this page is for whoever started the node: open the link that it printed. "
    "If a link on another page led here, load this page again."
)
OTHER_NAME = (
    "this page has another name: open it as localhost or by its address, or add the name to "
    "page.names"
)
READ_ONLY = "this page is only read: GET and HEAD"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a request says of itself, as far as the gate asks."""

    method: str
    host: str
    """The Host header, as it came."""
    path: str
    token: str = ""
    """In the link."""
    cookie: str = ""
    bearer: str = ""
    arrived_at: str = ""
    """The address of this machine at which the connection arrived."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The request may see what it asks for."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """Go to the same page without the token, which is in a cookie from now on."""

    to: str
    cookie: str
    """The whole Set-Cookie header."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request sees nothing but this."""

    status: int
    reason: str


Verdict = Pass | Redirect | Refusal


class PageGate:
    """Decides for each request of one page."""

    def __init__(self, token: str, port: int, names: Iterable[str] = ()) -> None:
        """`names`: other names of this machine by which its owner opens the page."""
        self._token = token
        self._names = frozenset(map(_plain, (*LOCAL_NAMES, *names)))
        self.cookie_name = f"p2pswarm-{port}"
        """Of its own for each port: a browser sends a host's cookies to all of its ports."""

    def verdict(self, request: PageRequest) -> Verdict:
        """Whether a request may see what it asks for."""
        if request.method not in METHODS:
            return Refusal(405, READ_ONLY)
        if not self._is_ours(request.host, request.arrived_at):
            return Refusal(421, OTHER_NAME)
        if request.path in PROBES:
            return Pass()
        if self._fits(request.token):
            return Redirect(_local(request.path), self._cookie())
        if self._fits(request.cookie) or self._fits(request.bearer):
            return Pass()
        return Refusal(401, OWNERS_ONLY)

    def _is_ours(self, host: str, arrived_at: str) -> bool:
        name = host_name(host)
        return bool(name) and (name in self._names or name == _plain(arrived_at))

    def _fits(self, offered: str) -> bool:
        """Compare in a time that does not tell how much of a token is right."""
        if not 0 < len(offered) <= TOKEN_CHARS_MAX:
            return False
        return hmac.compare_digest(offered.encode("utf-8", "replace"), self._token.encode())

    def _cookie(self) -> str:
        lasts_s = COOKIE_DAYS * 86_400
        return (
            f"{self.cookie_name}={self._token}; HttpOnly; SameSite=Strict; Path=/; "
            f"Max-Age={lasts_s}"
        )


def host_name(host: str) -> str:
    """The name of a Host header without its port; "" for what is none."""
    if not 0 < len(host) <= HOST_CHARS_MAX or not host.isascii():
        return ""
    try:
        parts = urllib.parse.urlsplit(f"//{host}")
        name, _port = parts.hostname or "", parts.port
    except ValueError:  # a bracket without its other, or a port that is none
        return ""
    return "" if parts.netloc != host or "@" in host else _plain(name)


def _plain(name: str) -> str:
    """One spelling for each name and address; an IPv4 address may have come as IPv6."""
    name = name.lower().rstrip(".").partition("%")[0]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _local(path: str) -> str:
    """A path of this page and no other place: "//elsewhere" would lead away."""
    return "/" + path.lstrip("/\\")
