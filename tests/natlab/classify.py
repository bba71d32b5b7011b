"""What a site's NAT really does, found out as a node would: by asking hosts on the internet.

Mapping: one port asks three others, two of them on one host. If all see the same, it is
independent of the endpoint. Filtering: a port asks one other port, and then others knock: another
port of the same host, and another host.

Of a datagram that was dropped nobody hears, so something else has to come later by the same way:
after the knocks the port asks again, and whatever was let in has come before the answer. A
connection that is dropped is told by patience alone.

Units:   seconds.
Errors:  TimeoutError of a probe, as CalledProcessError, where a host cannot reach the internet.
Source:  RFC 5780, sections 4.3 and 4.4: the method; RFC 4787, sections 4.1 and 5: the words;
         RFC 5382, section 4.3, for both ends dialling at once.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from .lab import PROBE, NatLab, Site
from .profiles import Filtering, Mapping

KINDS = ("udp", "tcp")
PATIENCE_S = 2.0  # the SYN is sent again after 1 s; only a very busy machine is slower
PUNCH_S = 3.0  # a SYN that was dropped is sent again after 1 s
FIRST, OTHER = 0, 1  # public hosts: whom the port asks, and whom it never does


@dataclass(frozen=True, slots=True)
class Finding:
    """What a NAT does to UDP or TCP."""

    mapping: Mapping
    filtering: Filtering
    refuses: bool
    """It answers RST to a connection that it does not let in; unknown of UDP, and so False."""


class Probe:
    """A probe in a host. Orders may be given to several before their answers are read."""

    def __init__(self, program: subprocess.Popen[str], *, ipv6: bool) -> None:
        self._program = program
        self._ipv6 = ipv6

    def order(self, **order: Any) -> Self:
        """Give an order; `told` has the answer."""
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(order) + "\n")
        self._program.stdin.flush()
        return self

    def told(self) -> Any:
        """The answer to the oldest order that has none yet."""
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        if not line:
            raise subprocess.CalledProcessError(self._program.wait(), self._program.args)
        return json.loads(line)

    def open(self) -> int:
        """A port that no one has used."""
        return int(self.order(do="open", ipv6=self._ipv6).told())

    def ask(self, kind: str, port: int, to: tuple[str, int]) -> tuple[str, int]:
        """How a port of ours looks from another."""
        host, number = self.order(do="ask", kind=kind, port=port, to=to).told()
        return str(host), int(number)


@contextmanager
def probe(lab: NatLab, host: int, *, ipv6: bool = False) -> Iterator[Probe]:
    """A probe in a host, until the block ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with lab.popen(host, PROBE, **pipes) as program:
        try:
            yield Probe(program, ipv6=ipv6)
        finally:
            program.kill()


def classify(lab: NatLab, site: Site) -> dict[str, Finding]:
    """What the site's routers do, for udp and for tcp."""
    ipv6 = site.profile.ipv6
    with ExitStack() as stack:
        client, first, other = (
            stack.enter_context(probe(lab, host, ipv6=ipv6)) for host in (site.host, FIRST, OTHER)
        )
        address = lab.address6 if ipv6 else lab.address
        first_at = [(address(FIRST), first.open()) for _ in range(2)]
        other_at = (address(OTHER), other.open())
        found = {}
        for kind in KINDS:
            port = client.open()
            seen = {client.ask(kind, port, to) for to in (*first_at, other_at)}
            mapping = Mapping.INDEPENDENT if len(seen) == 1 else Mapping.DEPENDENT

            port = client.open()
            mapped = client.ask(kind, port, first_at[0])
            knock: dict[str, Any] = {"do": "knock", "kind": kind, "to": mapped}
            knock["patience_s"] = PATIENCE_S
            first.order(port=first_at[1][1], **knock)
            other.order(port=other_at[1], **knock)
            knocked = first.told(), other.told()
            if kind == "udp":
                heard = _heard(client, port, first_at[0])
                got_in = [tuple(at) in heard for at in (first_at[1], other_at)]
            else:
                got_in = [result == "open" for result in knocked]
            found[kind] = Finding(mapping, _filtering(*got_in), "refused" in knocked)
        return found


def punch(lab: NatLab, a: Site, b: Site, limit_s: float = PUNCH_S) -> bool:
    """Whether two sites get a TCP connection when both dial at once, each from a mapped port.

    This is the most that a node can do there, if it knows of the other one's ports from a host that
    both have asked. Sites of different families have nothing to dial.
    """
    ipv6 = a.profile.ipv6
    if b.profile.ipv6 is not ipv6:
        return False
    hosts = (FIRST, a.host, b.host)
    with ExitStack() as stack:
        first, ours, theirs = (stack.enter_context(probe(lab, host, ipv6=ipv6)) for host in hosts)
        at = ((lab.address6 if ipv6 else lab.address)(FIRST), first.open())
        ports = [each.open() for each in (ours, theirs)]
        seen = [each.ask("tcp", port, at) for each, port in zip((ours, theirs), ports, strict=True)]
        order: dict[str, Any] = {"do": "punch", "limit_s": limit_s}
        ours.order(port=ports[0], to=seen[1], **order)
        theirs.order(port=ports[1], to=seen[0], **order)
        return any([ours.told(), theirs.told()])


def _heard(client: Probe, port: int, asked: tuple[str, int]) -> set[tuple[str, int]]:
    """Who has knocked by datagram, once all that was under way has come.

    Packets of two hosts may overtake each other within one round of the emulator, but not in two.
    """
    for _ in range(2):
        client.ask("udp", port, asked)
    return {(host, number) for host, number in client.order(do="knocks", port=port).told()}


def _filtering(*got_in: bool) -> Filtering:
    """From whether another port of a known host got in, and another host."""
    same_host, stranger = got_in
    if stranger:
        return Filtering.INDEPENDENT
    return Filtering.ADDRESS if same_host else Filtering.PORT
