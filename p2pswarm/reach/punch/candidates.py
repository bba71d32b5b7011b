"""The addresses of a peer that are dialled, and those of ours that are named to it.

A stranger who could name any address would have us dial a victim. So the side that is asked to
punch dials where it sees the peer itself, where its relay has seen it, or next door.

Source:  docs/punching.md, "Candidates, and whom we dial".
"""

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from p2pswarm.base.ids import Address
from p2pswarm.net.endpoint.preface import Sighting
from p2pswarm.net.os.addresses import Scope, scope_of
from p2pswarm.reach.punch.messages import CANDIDATES_MAX, Offer, PunchCandidate


@dataclass(frozen=True, slots=True, kw_only=True)
class DialTrust:
    """The knowledge of one side of an attempt, by which it judges the other's candidates."""

    outside: frozenset[Address] = field(default_factory=frozenset)
    """Addresses at which we are seen from outside."""
    own: frozenset[Address] = field(default_factory=frozenset)
    """Our own addresses."""
    families: frozenset[int] = frozenset({4, 6})
    """The versions of IP in which we can dial."""
    peer_host: str = ""
    """Host of the peer's own link; empty if it leads through a relay."""
    chosen: bool = False
    """We chose the peer, and dial it at public addresses as at those of its card."""


def usable(candidate: PunchCandidate, trust: DialTrust) -> Address | None:
    """The address of a candidate, if it is one of a single host, other than us, that we can dial.

    Our own machine is dialled only if we are seen there ourselves, as in a test on one machine.
    """
    try:
        ip = ipaddress.ip_address(candidate.host)
    except ValueError:
        return None
    address = Address(str(ip), candidate.port) if not getattr(ip, "scope_id", None) else None
    if address is None or address in trust.outside or address in trust.own:
        return None
    ip = ipaddress.ip_address(address.host)  # which is IPv4 now, if it was mapped into IPv6
    if ip.version not in trust.families or scope_of(address.host) is Scope.NOWHERE:
        return None
    if ip.is_loopback and not any(_loopback(each.host) for each in trust.outside):
        return None
    return address


def neighbours(candidates: Iterable[PunchCandidate], trust: DialTrust) -> bool:
    """Return whether the peer says that it is seen at an address of ours: one router stands before
    both.

    Whether the relay vouches for that is asked before anything is dialled.
    """
    ours = {each.host for each in trust.outside}
    return any(each.seal and each.host in ours for each in candidates)


def dialled(
    candidates: Sequence[PunchCandidate], trust: DialTrust, vouched: Collection[PunchCandidate] = ()
) -> list[Address]:
    """The addresses to dial, CANDIDATES_MAX at most. `vouched`: those that our relay has seen."""
    ours = {each.host for each in trust.outside}
    near = any(each.host in ours for each in vouched)
    near = near or (trust.chosen and neighbours(candidates, trust)) or trust.peer_host in ours
    inside = trust.chosen and all(scope_of(host) is not Scope.PUBLIC for host in ours)
    found: dict[Address, None] = {}
    for each in candidates[:CANDIDATES_MAX]:
        address = usable(each, trust)
        if address is None:
            continue
        known = each in vouched or address.host == trust.peer_host
        if scope_of(address.host) is Scope.PUBLIC:
            allowed = known or trust.chosen
        else:
            allowed = known or near or inside
        if allowed:
            found[address] = None
    return list(found)


def named(
    sightings: Iterable[Sighting], own: Iterable[Address], *, near: bool
) -> tuple[PunchCandidate, ...]:
    """Our candidates: where we were seen, and to a peer behind the same router our own addresses.

    Of several sightings of one address the first counts. Nobody else is told which private
    addresses we have.
    """
    found: dict[Address, PunchCandidate] = {}
    for each in sightings:
        at = each.address
        found.setdefault(at, PunchCandidate(at.host, at.port, each.seal))
    for at in own if near else ():
        found.setdefault(at, PunchCandidate(at.host, at.port, b""))
    return tuple(found.values())[:CANDIDATES_MAX]


def _loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


class Judgement:
    """The initiator's candidates in one attempt, and which of them the relay has seen.

    They come in two offers, CANDIDATES_MAX each; the relay is asked about each candidate once.
    """

    def __init__(self, trust: DialTrust) -> None:
        self._trust = trust
        self._judged: dict[PunchCandidate, bool] = {}

    def unjudged(self, offer: Offer) -> tuple[PunchCandidate, ...]:
        """Return the candidates that are new in an offer."""
        return tuple(each for each in offer.candidates if each not in self._judged)

    def judge(
        self, new: Collection[PunchCandidate], vouched: Collection[PunchCandidate]
    ) -> list[Address]:
        """Note for which of these the relay vouches; returns all that may be dialled."""
        self._judged.update({each: each in vouched for each in new})
        seen = {each for each, was_seen in self._judged.items() if was_seen}
        latest = list(self._judged)[::-1]  # of more than enough, those of the last word
        return dialled(latest, self._trust, seen)
