"""Dial-backs: their messages, whom we dial for others and how often, and whom we ask.

Units:   seconds on the caller's monotonic clock; `_ms` milliseconds since 1970 on the sender's.
Source:  docs/reachability.md section 3; AutoNAT v2 of libp2p for the same attack.
"""

import ipaddress
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.net.endpoint.preface import KNOCK_NONCE_BYTES
from p2pswarm.net.wire.message import Message, Range, Size, message
from p2pswarm.reach.nat.reachability import group_of

HOST_CHARS_MAX = 64  # an IPv6 number with a zone
PORT_MAX = 65535


class DialOutcome(IntEnum):
    """The outcome of a dial-back, as the peer that dialled says."""

    CONNECTED = 0
    FAILED = 1
    NOT_TRIED = 2
    """Over a limit, or the peer sees us at no address that it may dial."""


@message(14)
@dataclass(frozen=True, slots=True)
class DialBack(Message):
    """Asks to be dialled at this port, at the host where the receiver sees the sender.

    A peer is dialled at the host where we see its link, so nobody has us dial a third party. It
    may choose the port. So dials are few, and what is sent means nothing to other programs.
    """

    port: Annotated[int, Range(1, PORT_MAX)]
    nonce: Annotated[bytes, Size(KNOCK_NONCE_BYTES, KNOCK_NONCE_BYTES)]


@message(15)
@dataclass(frozen=True, slots=True)
class DialledBack(Message):
    """The answer to `DialBack`, when the dial is over."""

    outcome: Annotated[int, Range(0, max(DialOutcome))]
    host: Annotated[str, Size(HOST_CHARS_MAX)]
    """Host at which the sender sees the receiver's link; empty if it sees none."""
    port: Annotated[int, Range(0, PORT_MAX)]
    clock_ms: Annotated[int, Range(0, 2**53)]


WINDOW_S = 60.0
PEER_MAX = 4  # dials for one peer in the window: two ports, asked twice
GROUP_MAX = 16  # for one group of addresses: ids are free
TOTAL_MAX = 60  # for all: one a second, of 20 bytes
TOGETHER_MAX = 16  # under way at once, 3 s each at most
OBSERVERS = 3  # asked in a round, of different groups: two of three are believed


class DialBackLimits:
    """The dials for others in the last minute, `TOTAL_MAX` at most."""

    def __init__(self) -> None:
        self._begun: deque[tuple[float, PeerId, str]] = deque()
        self._under_way: dict[PeerId, None] = {}

    def begin(self, peer: PeerId, host: str, now_s: float) -> bool:
        """Return whether to dial for a peer now; if so, call `on_end` afterwards."""
        while self._begun and now_s - self._begun[0][0] >= WINDOW_S:
            self._begun.popleft()
        if peer in self._under_way or len(self._under_way) >= TOGETHER_MAX:
            return False
        group = group_of(host)
        by_peer = sum(1 for _, other, _ in self._begun if other == peer)
        by_group = sum(1 for _, _, other in self._begun if other == group)
        if by_peer >= PEER_MAX or by_group >= GROUP_MAX or len(self._begun) >= TOTAL_MAX:
            return False
        self._begun.append((now_s, peer, group))
        self._under_way[peer] = None
        return True

    def on_end(self, peer: PeerId) -> None:
        """Note that a dial is over."""
        del self._under_way[peer]


def may_dial(host: str, own_host: str) -> bool:
    """Return whether a host where we see a peer is one to dial.

    Our own machine only if we are reached there ourselves: else the peer came through a tunnel or a
    proxy on it, and would have us call what listens here for nobody outside.
    """
    try:
        seen = ipaddress.ip_address(host.partition("%")[0])
        own = ipaddress.ip_address(own_host.partition("%")[0])
    except ValueError:
        return False
    usable = not (seen.is_multicast or seen.is_unspecified or seen.is_link_local)
    return usable and (own.is_loopback or not (seen.is_loopback or seen == own))


@dataclass(frozen=True, slots=True)
class Observer:
    """A peer that could be asked to dial us."""

    contact: Contact
    host: str
    """Host at which we see it."""
    dialled: bool
    """True if we dialled it: then we chose it, not it us."""


def choose(observers: Iterable[Observer], asked_s: Callable[[str], float | None]) -> list[Observer]:
    """Choose whom to ask: of different groups, those first that were asked longest ago or never."""

    def rank(observer: Observer) -> tuple[float, bool]:
        last_s = asked_s(observer.host)
        return float("-inf") if last_s is None else last_s, not observer.dialled

    chosen: dict[str, Observer] = {}
    for observer in sorted(observers, key=rank):
        if len(chosen) < OBSERVERS:
            chosen.setdefault(group_of(observer.host), observer)
    return list(chosen.values())
