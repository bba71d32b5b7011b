"""After the decision of a step: who has yet to apply it, and what each stage's weights are then.

Only those who added their sums are held to a commit. A newcomer may skip one: a commit is a few
bytes and overtakes the reduction, for which nobody waits on its behalf. It fetches a later version
then, and its `Ready` says when it has caught up. One that skips several without having caught up in
between never will.

Units:   seconds on the caller's clock; versions count commits.
Errors:  none; a word about a commit that nobody waits for is ignored.
"""

from collections.abc import Iterable

from p2pswarm.swarm.view import Incarnation

COMMIT_S = 60.0  # an optimizer step on a slow machine, with its digest
SKIPS_MAX = (
    3  # without a `Ready`: by then it has a later version, or holds one that it cannot leave
)


class Commits:
    """The acknowledgements that are due, by member and step."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[Incarnation, int], float] = {}
        self._skips: dict[Incarnation, int] = {}

    def decided(self, step: int, members: Iterable[Incarnation], now_s: float) -> None:
        """The commit of a step goes out; `members` are held to it."""
        self._due_s |= {(member, step): now_s + COMMIT_S for member in members}

    def caught_up(self, member: Incarnation) -> None:
        """A newcomer holds the current version: what it skipped before is forgotten."""
        self._skips.pop(member, None)

    def answered(self, member: Incarnation, step: int) -> bool:
        """A member has done what a commit asks; whether it was held to it."""
        self._skips.pop(member, None)
        return self._due_s.pop((member, step), None) is not None

    def failed(self, member: Incarnation, step: int) -> bool:
        """A member did not do what a commit asks; whether that is to end its incarnation."""
        if self._due_s.pop((member, step), None) is not None:
            return True
        self._skips[member] = self._skips.get(member, 0) + 1
        return self._skips[member] >= SKIPS_MAX

    def end(self, member: Incarnation) -> None:
        """An incarnation is over: it owes nothing."""
        self._skips.pop(member, None)
        self._due_s = {key: due_s for key, due_s in self._due_s.items() if key[0] != member}

    def overdue(self, now_s: float) -> list[Incarnation]:
        """Who should have answered by now."""
        return [member for (member, _), due_s in self._due_s.items() if now_s >= due_s]

    def next_deadline_s(self) -> float | None:
        """When the first of them is overdue."""
        return min(self._due_s.values(), default=None)


class StageDigests:
    """The digest of each stage's weights, as far as its members have said.

    The first member to speak of a version is believed; all others have to hold the same.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, bytes]] = {}

    def known(self, stage: int, version: int) -> bytes | None:
        """The digest of a stage's weights of exactly `version`, if somebody has said it."""
        newest, digest = self._known.get(stage, (-1, b""))
        return digest if newest == version else None

    def agrees(self, stage: int, version: int, digest: bytes) -> bool:
        """Whether a digest is what the stage holds; the first word on a version is believed."""
        newest, known = self._known.get(stage, (-1, b""))
        if newest < version:
            self._known[stage] = (version, digest)
            return True
        return newest > version or known == digest
