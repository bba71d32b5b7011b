"""Members that are about to leave: who may go, and who is the last with its stage's weights.

A server that is asked to leave asks first whether it may. Several can be asked in one moment, and
each sees the others still there. So one place decides: whoever leaves may go as long as a member
of its stage stays that was not asked to leave. If all were, one has to stay until another server
has the weights, or its time is over: the one with the most time, of those that were not told that
they may go. Who was told so may be gone already, though its stream has not ended here yet.

Units:   seconds on the caller's clock.
Errors:  none; a member that is gone is forgotten.
"""

from dataclasses import dataclass

from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.members.membership import Membership


@dataclass(frozen=True, slots=True)
class AnswerLeave:
    """Tell a member whether it may leave."""

    incarnation: Incarnation
    may: bool


@dataclass(frozen=True, slots=True)
class LastLeaves:
    """Report: the last server of a stage that has the weights was asked to leave."""

    stage: int
    version: int
    incarnation: Incarnation
    stays_s: float
    saved: bool = False
    """A checkpoint is being written."""


class Departures:
    """The members that were asked to leave and are still here."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._told: dict[Incarnation, bool] = {}

    def asked(self, member: Incarnation, until_s: float) -> None:
        """A member is to leave by `until_s` at the latest."""
        if self._members.alive(member):
            self._members.leaving[member] = until_s

    def end(self, member: Incarnation) -> None:
        """An incarnation is over."""
        self._told.pop(member, None)

    def actions(self, version: int, now_s: float) -> list[AnswerLeave | LastLeaves]:
        """Tell each whether it may go, if it was not told or that has changed; drained."""
        actions: list[AnswerLeave | LastLeaves] = []
        for one, may in self._changed():
            actions.append(AnswerLeave(one, may))
            member = self._members.alive(one)
            if member is not None and member.ready and not may:
                stays_s = max(0.0, self._members.leaving[one] - now_s)
                actions.append(LastLeaves(member.stage, version, one, stays_s))
        return actions

    def _changed(self) -> list[tuple[Incarnation, bool]]:
        until_s = self._members.leaving
        if not until_s:
            return []
        may_go: dict[Incarnation, bool] = {}
        alive = {one: m for one in until_s if (m := self._members.alive(one))}
        for stage in sorted({member.stage for member in alive.values()}):
            here = [member.incarnation for member in self._members.ready(stage)]
            others = [one for one, m in alive.items() if m.stage == stage and not m.ready]
            may_go |= dict.fromkeys(others, bool(here))  # nobody relies on these
            leaving = [one for one in here if one in until_s]
            may_go |= dict.fromkeys(leaving, True)
            if leaving and len(leaving) == len(here):
                kept = [one for one in leaving if not self._told.get(one)] or leaving
                last = max(kept, key=lambda one: (until_s[one], one.peer))
                may_go[last] = False
        changed = {one: may for one, may in may_go.items() if self._told.get(one) is not may}
        self._told |= changed
        return sorted(changed.items(), key=lambda each: each[0].peer)
