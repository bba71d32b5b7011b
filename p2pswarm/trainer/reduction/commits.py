"""After the decision of a step: who has yet to apply it.

Only the members that added their sums must apply a commit. A newcomer may skip one: its reduction
may come late, because nobody waits for a newcomer. It then fetches a later version, and its `Ready`
says when it has caught up. A newcomer that skips several in a row will not catch up.

Units:   seconds on the caller's clock; versions count commits.
Errors:  none; an answer about a commit that nobody waits for is ignored.
"""

import math
from collections.abc import Iterable

from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.members.answer_limits import AnswerLimits

COMMIT_S = 60.0  # an optimizer step on a slow machine, with its digest
COMMIT_MAX_S = 3600.0  # of a machine that was too slow before
SKIPS_MAX = 3  # commits skipped with no `Ready` between: the newcomer does not catch up


class Commits:
    """The acknowledgements that are due, by member and step."""

    def __init__(self) -> None:
        self._limits = AnswerLimits(COMMIT_S, COMMIT_MAX_S)
        self._asked_s: dict[tuple[Incarnation, int], float] = {}
        self._next_s = math.inf
        """Nobody is overdue before."""
        self._skips: dict[Incarnation, int] = {}

    def decided(self, step: int, members: Iterable[Incarnation], now_s: float) -> None:
        """The commit of a step goes out; `members` must apply it."""
        if not self._asked_s:
            self._next_s = math.inf
        for member in members:
            self._asked_s[member, step] = now_s
            self._next_s = min(self._next_s, now_s + self._limits.limit_s(member.peer))

    def caught_up(self, member: Incarnation) -> None:
        """A newcomer holds the current version: what it skipped before is forgotten."""
        self._skips.pop(member, None)

    def answered(self, member: Incarnation, step: int, now_s: float) -> bool:
        """A member has applied a commit; returns whether it had to."""
        self._skips.pop(member, None)
        asked_s = self._asked_s.pop((member, step), None)
        if asked_s is not None:
            self._limits.took(member.peer, now_s - asked_s)
        return asked_s is not None

    def failed(self, member: Incarnation, step: int) -> bool:
        """A member did not apply a commit; returns whether its incarnation must end."""
        if self._asked_s.pop((member, step), None) is not None:
            return True
        self._skips[member] = self._skips.get(member, 0) + 1
        return self._skips[member] >= SKIPS_MAX

    def end(self, member: Incarnation) -> None:
        """An incarnation is over: nothing more is expected from it."""
        self._skips.pop(member, None)
        self._asked_s = {key: at_s for key, at_s in self._asked_s.items() if key[0] != member}

    def owing(self) -> list[Incarnation]:
        """The members from which an answer is due."""
        return [member for member, _ in self._asked_s]

    def overdue(self, now_s: float) -> list[Incarnation]:
        """The members that should have answered by now; they have longer the next time."""
        if now_s < self._next_s:
            return []
        late, self._next_s = [], math.inf
        for (member, _), asked_s in self._asked_s.items():
            due_s = asked_s + self._limits.limit_s(member.peer)
            if due_s <= now_s:
                late.append(member)
            else:
                self._next_s = min(self._next_s, due_s)
        for member in late:
            self._limits.too_slow(member.peer)
        return late

    def next_deadline_s(self) -> float | None:
        """When to ask who is overdue."""
        return self._next_s if self._asked_s else None
