"""Stochastic wiring: which server of the next stage gets the next microbatch.

Errors:  an unknown peer is ignored, since views and answers cross on the way.
Source:  SWARM Parallelism (arXiv 2301.11913) Algorithm 1. The average is bias-corrected and has a
         weight of 0.1, as in hivemind's PerformanceEMA. What is granted and not answered counts as
         in C3 (Suresh et al., NSDI 2015). Start times that do not fall behind: Goyal et al.,
         "Start-time Fair Queueing" (SIGCOMM 1996). Downstream before speed: what the entries of
         IOTA's simulator competition found.
"""

import random
import statistics
from dataclasses import dataclass, field

from p2pswarm.base.estimates import Ema
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.push import BUSY_LEAST_S, BUSY_MAX_S, Candidates, PushTimes

SMOOTHING = 0.1  # weight of the newest sample in the average, as in SWARM and hivemind
REFUSED_S = 0.25  # pause after a server has said that it does not serve this step or attempt
REFUSED_DOUBLINGS = 4  # of the pauses of a server that only refuses: each ask costs a round trip
BUSY_DOUBLINGS = 5  # to 0.32 s: an honest queue of 32 is longer than that, or soon empty
UNGRANTED_PAUSE_S = 1.0  # long enough for its microbatches to go elsewhere, and never longer
AVOID_FIRST_S, AVOID_MAX_S = 0.5, 30.0  # pauses after failures; the limit: a view comes sooner
FIRST_GUESS_S = 1.0  # only the ratio between peers matters, and all start equal
BEHIND = 2.0  # times the usual answer: then the server counts as stalled
BEHIND_LEAST_S = 0.1  # below this a pause of the garbage collector or the kernel would count
QUEUE_EXPLAINED = 16.0  # times a microbatch that an answer may take without a doubt about it: five
# others before it, each of three forwards' time; with 8, queues made equal servers look unequal
GUESSED_FROM = 8  # with so many measured, the median of one more changes no guess; then of twice
MISSED_MAX = 1.0  # microbatches that are made up for, as a rounding of shares is
DOWNSTREAM_USUAL = 4.0  # times the median: slower gradients show a congestion; queues make 2 of it
DOWNSTREAM_MAX = 64.0  # by which a congestion makes a microbatch count as longer at most


@dataclass(slots=True)
class _ServerEstimate:
    member: MemberRecord
    charged_s: float
    guess_s: float
    expected_s: float
    """The time of one microbatch there: as measured or, before that, as guessed."""
    measured_s: Ema = field(default_factory=lambda: Ema(SMOOTHING))
    answer_s: Ema = field(default_factory=lambda: Ema(SMOOTHING))
    """From the choice to the receipt."""
    late_s: float = float("inf")
    """Who has had something for longer than this is behind."""
    gradient_s: float = 0.0
    """How long gradients take to come back there, as it told last; 0: unknown."""
    pending_s: list[float] = field(default_factory=list)
    """When each microbatch was given to it that is not answered; the oldest first."""
    settled_s: float = float("-inf")
    busy_until_s: float = float("-inf")
    avoid_until_s: float = float("-inf")
    lost_until_s: float = float("-inf")
    """It was not reached, and is not tried before."""
    avoid_s: float = AVOID_FIRST_S
    """The pause after its next failure."""
    refusals: int = 0
    """How often it has refused since it computed something; those at one time count as one."""

    def settled(self, measured_s: float, answer_s: float) -> None:
        """It has computed a microbatch, and answered."""
        self.measured_s.add(measured_s)
        self.answer_s.add(answer_s)
        self.expected_s = self.measured_s.value or 0.0  # it has a sample
        self.late_s = max(BEHIND_LEAST_S, BEHIND * (self.answer_s.value or 0.0))

    def refused(self, now_s: float, pause_s: float, doublings: int, most_s: float) -> None:
        """It has not taken a microbatch: leave it alone for `pause_s`, or longer if it repeats."""
        if self.busy_until_s <= now_s:
            pause_s *= 2.0 ** min(self.refusals, doublings)
            self.refusals += 1
        self.busy_until_s = max(self.busy_until_s, now_s + min(pause_s, most_s))
        self.charged_s -= self.expected_s

    def answered_level_s(self) -> float:
        """Return what it was charged, without what it has yet to answer."""
        return self.charged_s - len(self.pending_s) * self.expected_s

    def behind(self, now_s: float, usual_late_s: float) -> bool:
        """Return whether it has had something for much longer than it usually takes.

        `usual_late_s`: how long others take that are behind, for one that never answered.
        """
        late_s = usual_late_s if self.measured_s.value is None else self.late_s
        return bool(self.pending_s) and now_s - self.pending_s[0] > late_s


class Router(Candidates):
    """Chooses among the ready servers of one stage.

    The router is an interleaved weighted round robin over measured time. For every server it keeps
    a virtual time: the sum of what the server was charged. It chooses the server for which this
    sum would be the least with one more microbatch, and charges it the time expected for that. So
    a peer twice as fast is chosen twice as often. Every sender finds its own weights and asks
    nobody for them.

    A server's time for a microbatch is what its receipt says and the clock here confirms: at least
    the time that it computed, that the bytes took, and a 16th of the whole; at most the time since
    its last answer. So neither a deep queue nor other senders make a fast server look slow, equal
    servers get equal work to within one microbatch, and one that claims to be fast must answer
    fast. A new server starts with the least virtual time of the others and their median speed, as
    if they had not been given what they have yet to answer: it has nothing to do, and they have.
    So it is tried at once, and not flooded.

    Four things count for more than speed:

    * What was granted and has no receipt. A server that has had a microbatch of ours for twice as
      long as it usually takes is behind: it gets nothing new, if another is not behind, until it
      answers. One that never answered is behind when it is later than all others would be.
    * What happens downstream. A receipt tells how long gradients take to come back to that server.
      If that is more than four times the median of its stage, its time counts as longer by the
      square of what is beyond. A server from which nothing goes on is so left alone, however fast
      it is. What is no later than gradients come back to us is no congestion, whatever others tell.
    * Refusals. A server that is full or does not serve costs a round trip, and no charge, so it
      would be asked first again. Its pauses double until it computes something, whatever it says.
    * Failures. A server that fails answers fast, but failing is not being fast: it is not measured
      then, and is avoided for a while, twice as long after each failure, if there is another. One
      that cannot be reached is not tried for as long. What fails while a server is avoided was
      begun before: it is the same failure, and makes no pause longer.

    Who was left alone for a while comes back at the level of the others: what it has missed is not
    made up for, or it would be flooded.
    """

    others_may_come = True

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._servers: dict[bytes, _ServerEstimate] = {}
        self._chosen_s = float("-inf")
        self._level_s = 0.0
        """The virtual time that the last chosen server had."""
        self._measured = 0
        """How many servers have been measured."""
        self._usual_gradient_s = 0.0
        """The median of what servers tell of their gradients; 0: unknown."""
        self._own_gradient_s = 0.0
        """How long gradients take to come back to us, whichever server they come from."""

    def update(self, members: tuple[MemberRecord, ...]) -> None:
        """Follow a new view: forget servers that left, start anew with new incarnations.

        A new address or card changes nothing of what a server has shown.
        """
        known = []
        for member in members:
            server = self._servers.get(member.peer)
            if server is not None and server.member.incarnation == member.incarnation:
                server.member = member
                known.append(server)
        self._servers = {s.member.peer: s for s in known}
        self._measured = sum(s.measured_s.value is not None for s in known)
        if len(known) == len(members):
            return
        guess_s = statistics.median(s.expected_s for s in known) if known else FIRST_GUESS_S
        level_s = min((s.answered_level_s() for s in known), default=0.0)
        for member in members:
            if member.peer not in self._servers:
                start_s = level_s + self._rng.random() * guess_s  # or all senders choose alike
                self._servers[member.peer] = _ServerEstimate(member, start_s, guess_s, guess_s)

    def choose(self, now_s: float) -> MemberRecord | None:
        """The server to try next, charged for one microbatch; None while all are busy or gone."""
        self._chosen_s = now_s
        free = [s for s in self._sound() if s.busy_until_s <= now_s]
        if not free:
            return None
        late_s = self._usual_late_s()
        going = [s for s in free if not s.behind(now_s, late_s)] or free
        server, charge_s, end_s = None, 0.0, float("inf")
        usual_s = max(DOWNSTREAM_USUAL * self._usual_gradient_s, self._own_gradient_s)
        for one in going:  # each push looks at all: this is what it costs
            one_s = one.expected_s
            if one.gradient_s > usual_s > 0.0:
                slower = one.gradient_s / usual_s
                one_s *= min(slower * slower, DOWNSTREAM_MAX)
            start_s = max(one.charged_s, self._level_s - MISSED_MAX * one_s)
            if start_s + one_s < end_s or (
                server and start_s + one_s == end_s and one.member.peer < server.member.peer
            ):
                server, charge_s, end_s = one, one_s, start_s + one_s
        assert server is not None, "the time of a microbatch is finite"
        self._level_s = max(self._level_s, end_s - charge_s)
        server.charged_s = end_s
        server.pending_s.append(now_s)
        return server.member

    def on_gradients(self, usual_s: float) -> None:
        """Take how long gradients take to come back to us at present; 0: unknown."""
        self._own_gradient_s = usual_s

    def _usual_late_s(self) -> float:
        """Return how late a server may be that never answered: twice the slowest of the others."""
        if not self._measured or self._measured == len(self._servers):
            return float("inf")
        measured = [s.late_s for s in self._servers.values() if s.measured_s.value is not None]
        return BEHIND * max(measured)

    def unanswered(self, peer: bytes, held_s: float) -> None:
        """A push was taken from a server that had it for so long and had not computed it.

        So it takes at least as long: who learns only from answers takes a server that never
        answers for as fast as the others.
        """
        server = self._servers.get(peer)
        if server is not None and held_s > server.expected_s:
            first = server.measured_s.value is None
            server.settled(held_s, held_s)
            self._measured += first

    def over(self, peer: bytes, chosen_s: float) -> None:
        """What was given to a server then is not there any more, whatever became of it."""
        server = self._servers.get(peer)
        if server is not None and chosen_s in server.pending_s:
            server.pending_s.remove(chosen_s)

    def settle(self, peer: bytes, times: PushTimes) -> None:
        """A microbatch has been computed."""
        server = self._servers.get(peer)
        if server is None:
            return
        since_s = max(0.0, times.answered_s - max(times.started_s, server.settled_s))
        took_s = max(0.0, times.answered_s - times.started_s)
        bytes_s = took_s - times.queue_s - times.compute_s - times.grant_s
        shown_s = max(times.compute_s, bytes_s, took_s / QUEUE_EXPLAINED)
        first = server.measured_s.value is None
        answer_s = max(0.0, times.answered_s - min(times.chosen_s, times.started_s))
        server.settled(min(since_s, shown_s), answer_s)
        if first:
            self._measured += 1
            if self._measured <= GUESSED_FROM or not self._measured & (self._measured - 1):
                self._guess_anew()
        server.settled_s = times.answered_s
        server.avoid_s, server.refusals = AVOID_FIRST_S, 0
        server.lost_until_s = float("-inf")
        if server.gradient_s != times.gradient_s:
            server.gradient_s = times.gradient_s
            told_s = [s.gradient_s for s in self._servers.values() if s.gradient_s]
            self._usual_gradient_s = statistics.median_low(told_s) if told_s else 0.0

    def _guess_anew(self) -> None:
        """Let servers that are not measured yet count as fast as those that are.

        A guess from before is a number without a meaning beside a measured time: a server that came
        when nobody was measured would look many times as fast as all others, and get it all. What
        was charged by such guesses is counted anew in measured time.
        """
        servers = self._servers.values()
        known_s = [s for one in servers if (s := one.measured_s.value) is not None]
        guess_s = statistics.median(known_s)
        before_s = next(iter(servers)).guess_s  # 0 of servers whose clocks are too coarse
        scale = guess_s / before_s if len(known_s) == 1 and before_s else 1.0
        self._level_s *= scale
        for one in servers:
            one.guess_s = guess_s
            one.charged_s *= scale
            if one.measured_s.value is None:
                one.expected_s = guess_s

    def busy(self, peer: bytes, now_s: float, retry_after_s: float) -> None:
        """It is full: do not choose it for as long as it says, and take the charge back."""
        if server := self._servers.get(peer):
            server.refused(now_s, BUSY_LEAST_S, BUSY_DOUBLINGS, BUSY_MAX_S)
            told_s = now_s + min(retry_after_s, BUSY_MAX_S)
            server.busy_until_s = max(server.busy_until_s, told_s)

    def refused(self, peer: bytes, now_s: float) -> None:
        """It does not serve this step or attempt: do not choose it for `REFUSED_S` or longer."""
        if server := self._servers.get(peer):
            server.refused(now_s, REFUSED_S, REFUSED_DOUBLINGS, BUSY_MAX_S)

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

    def ungranted(self, peer: bytes, now_s: float) -> None:
        """It does not answer, and may again any moment: do not try it for `UNGRANTED_PAUSE_S`."""
        if server := self._servers.get(peer):
            until_s = now_s + UNGRANTED_PAUSE_S
            server.avoid_until_s = max(server.avoid_until_s, until_s)
            server.busy_until_s = max(server.busy_until_s, until_s)
            server.lost_until_s = max(server.lost_until_s, until_s)

    def nobody_reached(self, now_s: float) -> bool:
        """Return whether there are servers, and none of them was reached the last time."""
        servers = self._servers.values()
        return bool(servers) and all(now_s < server.lost_until_s for server in servers)

    def free_at_s(self) -> float | None:
        """When the first busy server may be asked again; None if there is no server at all."""
        return min((s.busy_until_s for s in self._sound()), default=None)

    def _sound(self) -> list[_ServerEstimate]:
        """The servers that are not avoided; all, if there is no other."""
        servers = list(self._servers.values())
        return [s for s in servers if s.avoid_until_s <= self._chosen_s] or servers
