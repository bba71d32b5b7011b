"""Members from which nothing comes: how long each may be silent before a step goes on without it.

Units:   seconds on a clock that stands still while the trainer is stopped.
"""

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.trainers import SILENCE_S
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.members.probation import Probation
from p2pswarm.trainer.step.reduction import Reduction
from p2pswarm.trainer.step.step import Step

NEWCOMER_SILENT_S = 1.2  # two words may be missing: its sum of the step is small
SILENT_S = 2.5  # four words may be missing, or one may be sent again by TCP: 0.2 + 0.4 + 0.8 s
LEARNED_MAX_S = 8.0  # whoever pauses for longer holds all others up for more than its sum is worth
SILENT_MAX_S = 15.0  # then its link ends anyway
SAID_AGAIN_S = 1.0  # the load is told each second
NOT_HEARD_S = 3.0  # a standby says each second who hears nothing from the coordinator
LEARNED = 2.0  # times the longest pause from which it came back
FORGOTTEN = 0.9  # what is left of a learned pause at each look, some seconds apart
LATELY_S = 0.75  # a member says a word each half second
DEAF_S = 1.25  # without a word of anybody: two of each are missing, so it was our own network
EXCUSED_MAX_S = 5.0  # after a cut: TCP sends again when as much time has passed as the cut took
LOOK_AGAIN_S = 1.0  # a silent member may become the one that everybody waits for


class Silence:
    """Time of each member's last word.

    A member says a word each half second, also while it computes. Its link ends only after 15 s of
    silence, so that a pause costs nobody its link. That is too long where all others wait. So the
    trainer evicts silent members without which the step cannot end, if another server has their
    stage's weights. An evicted member keeps its weights, joins again, and has lost its sum of this
    step.

    Python holds up a member's event loop for moments (an import, the first use of a device). A
    member that came back from a pause, evicted or not, may be silent twice as long the next time,
    8 s at most. One that came after the run, and was in no decided step yet, has half the time: it
    has little to lose.

    If no word came of anybody, the trainer's own network had failed. When the first word comes, the
    others have as much time again: TCP sends after a cut what was lost in it, to each at another
    moment. Else all would be out, one after another, and their sums void. For as long as the cut
    took, what is said of members that hear nothing is about the cut, and does not count.

    A member that hears nothing from the coordinator is as good as silent. It says so itself with
    its load, if only the way to it is cut. A trainer that was stopped finds such words of all in
    its sockets, so one counts only when it is said again a second later. A member that is cut off
    both ways asks the standbys who leads, and they tell. A question of another incarnation tells
    nothing: it may be on its road for as long as a link is cut.
    """

    def __init__(self, members: Membership, probation: Probation) -> None:
        self._members = members
        self._probation = probation
        self._any_s = math.inf
        """Time of anybody's last word."""
        self._excused_s = -math.inf
        """Until then members may say that they heard nothing: our own network had failed."""
        self._heard_s: dict[Incarnation, float] = {}
        self._first_s: dict[Incarnation, float] = {}
        """Time of its first word."""
        self._deaf_s: dict[Incarnation, float] = {}
        """Time at which a standby said last that a member hears nothing from us."""
        self._look_s = math.inf
        """Time to look at those."""
        self._quiet = False
        """True if the trainer itself says nothing to its members."""
        self._unheard_s: dict[Incarnation, float] = {}
        """Time since which a member says itself that it hears nothing from us."""
        self._left_s: dict[bytes, float] = {}
        """Time of the last word of a peer that has no incarnation now."""
        self._longest_s: dict[bytes, float] = {}
        """The longest pause of a peer from which it came back."""
        self._looks: list[tuple[float, int, bytes]] = []
        """A heap: time to look at a member next, and its incarnation."""

    def on_word(self, one: Incarnation, now_s: float) -> None:
        """Something came from a member, whatever it says."""
        if self._members.alive(one) is None:
            return
        if self._cut_off(now_s) and len(self._heard_s) > 1:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
            self._excused_s = now_s + min(EXCUSED_MAX_S, now_s - self._any_s)
            self._forget_deaf()
        self._any_s = now_s
        before_s = self._heard_s.get(one)
        self._heard_s[one] = now_s
        if before_s is None:
            self._first_s[one] = now_s
            self._probation.on_first_word(one.peer, now_s)
            before_s = self._left_s.pop(one.peer, now_s)
            heappush(self._looks, (now_s + self.limit_s(one.peer), one.number, one.peer))
        pause_s = now_s - before_s
        if LEARNED * pause_s > SILENT_S and pause_s <= SILENT_MAX_S:
            self._longest_s[one.peer] = max(self._longest_s.get(one.peer, 0.0), pause_s)

    def on_quiet(self, *, quiet: bool) -> None:
        """The trainer itself says nothing to members: no wonder that they hear nothing."""
        if quiet != self._quiet:
            self._quiet = quiet
            self._forget_deaf()

    def on_deaf_members(self, deaf: Iterable[Incarnation], now_s: float) -> None:
        """A standby says that these members hear nothing from us; former ones are passed over."""
        if self._excused(now_s):
            return
        recent_s = now_s - NOT_HEARD_S
        self._deaf_s = {one: said_s for one, said_s in self._deaf_s.items() if said_s > recent_s}
        self._deaf_s |= dict.fromkeys((one for one in deaf if one in self._heard_s), now_s)
        self._look_s = now_s

    def on_unheard_time(self, one: Incarnation, for_s: float, now_s: float) -> None:
        """A member says for how long it has heard nothing from us."""
        if self._excused(now_s) or for_s < SILENCE_S or one not in self._heard_s:
            self._unheard_s.pop(one, None)
        elif now_s >= self._unheard_s.setdefault(one, now_s) + SAID_AGAIN_S:
            self.on_deaf_members([one], now_s)

    def on_end(self, one: Incarnation) -> None:
        """An incarnation is over."""
        self._unheard_s.pop(one, None)
        self._first_s.pop(one, None)
        if (heard_s := self._heard_s.pop(one, None)) is not None:
            self._left_s[one.peer] = heard_s

    def limit_s(self, peer: bytes) -> float:
        """Return how long a peer may be silent."""
        learned_s = LEARNED * self._longest_s.get(peer, 0.0)
        least_s = NEWCOMER_SILENT_S if self._probation.newcomer(peer) else SILENT_S
        return min(LEARNED_MAX_S, max(least_s, learned_s))

    def stay_s(self, one: Incarnation) -> float:
        """Return the time from a member's first word to its last; without any nothing is known."""
        return self._heard_s[one] - self._first_s[one] if one in self._heard_s else math.inf

    def unheard_s(self, one: Incarnation, now_s: float) -> float:
        """Return for how long nothing has come from a member."""
        return max(0.0, now_s - self._heard_s.get(one, now_s))

    def silent(self, one: Incarnation, now_s: float) -> bool:
        """Return whether nothing has come from a member for too long, or nothing gets to it."""
        heard_s = self._heard_s.get(one)
        if heard_s is None:
            return False
        deaf = now_s < self._deaf_s.get(one, -math.inf) + NOT_HEARD_S
        return deaf or now_s >= heard_s + self.limit_s(one.peer)

    def speaks(self, one: Incarnation, now_s: float) -> bool:
        """Return whether a member has said something just now, and hears us as far as it says."""
        return not self.silent(one, now_s) and now_s < self._heard_s.get(one, -math.inf) + LATELY_S

    def may_come_back(self, one: Incarnation, now_s: float) -> bool:
        """Return whether a member is silent, and not for longer than a link would last."""
        heard_s = self._heard_s.get(one, math.inf)
        return heard_s + self.limit_s(one.peer) <= now_s < heard_s + SILENT_MAX_S

    def to_evict(
        self,
        step: Step,
        reduction: Reduction | None,
        spares: Callable[[int], Iterable[Incarnation]],
        now_s: float,
    ) -> list[Incarnation]:
        """The silent members without whom the step cannot end, though their stages have others.

        Where a whole stage is silent nobody is evicted: it may be our own network. `spares`: others
        with a stage's weights, which are not ready.
        """
        silent = [one for one in self._overdue(now_s) if self._waited_for(one, step, reduction)]
        return [one for one in silent if self._replaceable(one, spares, now_s)]

    def next_deadline_s(self) -> float | None:
        """Return when to ask whom to evict."""
        due_s = min(self._look_s, self._looks[0][0]) if self._looks else self._look_s
        return due_s if due_s < math.inf else None

    def _overdue(self, now_s: float) -> list[Incarnation]:
        """The members that are silent at a look that is due; they are looked at again."""
        silent = [one for one in self._deaf_s if self.silent(one, now_s)]
        self._look_s = math.inf
        while self._looks and self._looks[0][0] <= now_s:
            _, number, peer = heappop(self._looks)
            one = Incarnation(peer, number)
            heard_s = self._heard_s.get(one)
            if heard_s is None:
                continue
            due_s = heard_s + self.limit_s(peer)
            if due_s <= now_s:
                silent.append(one)
                due_s = now_s + LOOK_AGAIN_S
            else:
                self._forget(peer)
            heappush(self._looks, (due_s, number, peer))
        return silent

    def _waited_for(self, silent: Incarnation, step: Step, reduction: Reduction | None) -> bool:
        """Return whether the step cannot end without a member."""
        member = self._members.alive(silent)
        if member is None or not member.ready:
            return False
        if reduction is not None:
            return reduction.awaits(silent)
        return step.awaits_promise(silent) or step.in_flight.all_launched

    def _replaceable(
        self, silent: Incarnation, spares: Callable[[int], Iterable[Incarnation]], now_s: float
    ) -> bool:
        """Return whether others of its stage are heard, who have the weights."""
        if self._cut_off(now_s):
            return False  # of a cut of our own, those are silent first that spoke first before it
        member = self._members.alive(silent)
        assert member is not None, "only the living are waited for"
        others = [one.incarnation for one in self._members.ready(member.stage)]
        others += spares(member.stage)
        if not self._probation.proven(silent.peer):  # it may be early: our network may have failed
            heard_s = (self._heard_s.get(one, -math.inf) for one in others)
            return any(now_s < time_s + LATELY_S for time_s in heard_s)
        return not all(self.silent(one, now_s) for one in others)

    def _excused(self, now_s: float) -> bool:
        """Return whether members hear nothing because of us, or did until a moment ago."""
        return self._quiet or now_s < self._excused_s or self._cut_off(now_s)

    def _cut_off(self, now_s: float) -> bool:
        """Return whether nothing comes from anybody: our own network has failed."""
        return now_s >= self._any_s + DEAF_S

    def _forget_deaf(self) -> None:
        self._deaf_s.clear()
        self._unheard_s.clear()

    def _forget(self, peer: bytes) -> None:
        if peer in self._longest_s:
            self._longest_s[peer] *= FORGOTTEN
            if LEARNED * self._longest_s[peer] <= SILENT_S:
                del self._longest_s[peer]
