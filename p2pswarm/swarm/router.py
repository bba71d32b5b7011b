"""Stochastic wiring: which server of the next stage gets the next microbatch.

The router is an interleaved weighted round robin over measured time. For every server it keeps a
virtual time: the sum of what the server was charged. It chooses the server for which this sum would
be the least with one more microbatch, and charges it the time expected for that. So a peer twice as
fast is chosen twice as often, and a near peer looks faster than a far one. Every sender finds its
own weights and asks nobody for them.

The router measures throughput, not latency, so a deep queue does not make a fast server look slow:
it takes the time between two answers of a busy server, and the time from grant to answer of an idle
one. A new server starts with the least virtual time of the others and their median speed. So it is
tried at once, and not flooded.

A server that fails answers fast, but failing is not being fast: it is not measured then, and is
avoided for a while, twice as long after each failure, if there is another. One that cannot be
reached is not tried for as long. What fails while a server is avoided was begun before: it is the
same failure, and makes no pause longer.

Units:   seconds on the caller's clock.
Errors:  none; an unknown peer is ignored, since views and answers cross on the way.
Source:  SWARM Parallelism (arXiv 2301.11913) Algorithm 1. The average is bias-corrected and has a
         weight of 0.1, as in hivemind's PerformanceEMA.
"""

import random
import statistics
from dataclasses import dataclass, field

from p2pswarm.flow.estimates import Ema
from p2pswarm.swarm.messages.membership import MemberRecord

SMOOTHING = 0.1  # weight of the newest sample in the average, as in SWARM and hivemind
REFUSED_S = 0.25  # pause after a server has said that it does not serve this step or attempt
AVOID_FIRST_S, AVOID_MAX_S = 0.5, 30.0  # pauses after failures; the limit: a view comes sooner
FIRST_GUESS_S = 1.0  # only the ratio between peers matters, and all start equal


@dataclass(slots=True)
class _ServerEstimate:
    """One server as this sender sees it."""

    member: MemberRecord
    charged_s: float
    guess_s: float
    measured_s: Ema = field(default_factory=lambda: Ema(SMOOTHING))
    settled_s: float = float("-inf")
    busy_until_s: float = float("-inf")
    avoid_until_s: float = float("-inf")
    lost_until_s: float = float("-inf")
    """It was not reached, and is not tried before."""
    avoid_s: float = AVOID_FIRST_S
    """The pause after its next failure."""

    @property
    def expected_s(self) -> float:
        """The time of one microbatch there: as measured or, before that, as guessed."""
        measured_s = self.measured_s.value
        return self.guess_s if measured_s is None else measured_s


class Router:
    """Chooses among the ready servers of one stage: the `Candidates` of a push."""

    others_may_come = True

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._servers: dict[bytes, _ServerEstimate] = {}
        self._chosen_s = float("-inf")

    def update(self, members: tuple[MemberRecord, ...]) -> None:
        """Follow a new view: forget servers that left, start anew with new incarnations."""
        kept = {m.peer: self._servers.get(m.peer) for m in members}
        known = [s for m in members if (s := kept[m.peer]) and s.member == m]
        guess_s = statistics.median(s.expected_s for s in known) if known else FIRST_GUESS_S
        level_s = min((s.charged_s for s in known), default=0.0)
        self._servers = {s.member.peer: s for s in known}
        for member in members:
            if member.peer not in self._servers:
                start_s = level_s + self._rng.random() * guess_s  # or all senders choose alike
                self._servers[member.peer] = _ServerEstimate(member, start_s, guess_s)

    def choose(self, now_s: float) -> MemberRecord | None:
        """The server to try next, charged for one microbatch; None while all are busy or gone."""
        self._chosen_s = now_s
        free = [s for s in self._sound() if s.busy_until_s <= now_s]
        if not free:
            return None
        server = min(free, key=lambda s: (s.charged_s + s.expected_s, s.member.peer))
        server.charged_s += server.expected_s
        return server.member

    def settle(self, peer: bytes, started_s: float, now_s: float) -> None:
        """A microbatch granted at `started_s` has been computed."""
        server = self._servers.get(peer)
        if server is None:
            return
        interval_s = max(0.0, now_s - max(started_s, server.settled_s))
        server.settled_s = now_s
        server.measured_s.add(interval_s)
        server.avoid_s = AVOID_FIRST_S
        server.lost_until_s = float("-inf")

    def busy(self, peer: bytes, until_s: float) -> None:
        """It is full: do not choose it before `until_s`, and take the charge back."""
        if server := self._servers.get(peer):
            server.busy_until_s = until_s
            server.charged_s -= server.expected_s

    def refused(self, peer: bytes, now_s: float) -> None:
        """It does not serve this step or attempt: do not choose it for `REFUSED_S`."""
        self.busy(peer, now_s + REFUSED_S)

    def failed(self, peer: bytes, now_s: float) -> None:
        """It could not compute what it took: avoid it, and let the charge stand."""
        server = self._servers.get(peer)
        if server is not None and server.avoid_until_s <= now_s:
            server.avoid_until_s = now_s + server.avoid_s
            server.avoid_s = min(2 * server.avoid_s, AVOID_MAX_S)

    def lost(self, peer: bytes, now_s: float) -> None:
        """It cannot be reached: do not try it for a while; a view may come that lacks it."""
        self.failed(peer, now_s)
        if server := self._servers.get(peer):
            server.busy_until_s = server.lost_until_s = server.avoid_until_s

    def nobody_reached(self, now_s: float) -> bool:
        """Whether there are servers, and none of them was reached the last time."""
        servers = self._servers.values()
        return bool(servers) and all(now_s < server.lost_until_s for server in servers)

    def free_at_s(self) -> float | None:
        """When the first busy server may be asked again; None if there is no server at all."""
        return min((s.busy_until_s for s in self._sound()), default=None)

    def _sound(self) -> list[_ServerEstimate]:
        """The servers that are not avoided; all, if there is no other."""
        servers = list(self._servers.values())
        return [s for s in servers if s.avoid_until_s <= self._chosen_s] or servers
