"""After the decision of a step: who has yet to apply it.

Only the members that added their sums must apply a commit. A newcomer may skip one: its reduction
may come late, because nobody waits for a newcomer. It then fetches a later version, and its `Ready`
says when it has caught up. A newcomer that skips several in a row will not catch up.

Units:   seconds on the caller's clock; versions count commits.
Errors:  none; an answer about a commit that nobody waits for is ignored.
"""

from collections.abc import Iterable

from p2pswarm.swarm.view import Incarnation

COMMIT_S = 60.0  # an optimizer step on a slow machine, with its digest
SKIPS_MAX = 3  # commits skipped with no `Ready` between: the newcomer does not catch up


class Commits:
    """The acknowledgements that are due, by member and step."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[Incarnation, int], float] = {}
        self._skips: dict[Incarnation, int] = {}

    def decided(self, step: int, members: Iterable[Incarnation], now_s: float) -> None:
        """The commit of a step goes out; `members` must apply it."""
        self._due_s |= {(member, step): now_s + COMMIT_S for member in members}

    def caught_up(self, member: Incarnation) -> None:
        """A newcomer holds the current version: what it skipped before is forgotten."""
        self._skips.pop(member, None)

    def answered(self, member: Incarnation, step: int) -> bool:
        """A member has applied a commit; returns whether it had to."""
        self._skips.pop(member, None)
        return self._due_s.pop((member, step), None) is not None

    def failed(self, member: Incarnation, step: int) -> bool:
        """A member did not apply a commit; returns whether its incarnation must end."""
        if self._due_s.pop((member, step), None) is not None:
            return True
        self._skips[member] = self._skips.get(member, 0) + 1
        return self._skips[member] >= SKIPS_MAX

    def end(self, member: Incarnation) -> None:
        """An incarnation is over: nothing more is expected from it."""
        self._skips.pop(member, None)
        self._due_s = {key: due_s for key, due_s in self._due_s.items() if key[0] != member}

    def owing(self) -> list[Incarnation]:
        """The members from which an answer is due."""
        return [member for member, _ in self._due_s]

    def overdue(self, now_s: float) -> list[Incarnation]:
        """The members that should have answered by now."""
        return [member for (member, _), due_s in self._due_s.items() if now_s >= due_s]

    def next_deadline_s(self) -> float | None:
        """When the first answer is overdue."""
        return next(iter(self._due_s.values()), None)  # all have one limit: the oldest is first
