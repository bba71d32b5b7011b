"""The digest of each stage's state: what most of its members report.

Every member that must apply a commit reports the digest of what it then holds, when it is computed,
and every member that reduces a step reports the digest of what it computed the step with. The
digest with the most votes stands, as soon as no other can overtake it. Where two digests have
equally many votes, nobody can tell which is right: the one of the first peer id stands, and people
are told.

Units:   versions count commits.
Errors:  none; reports about older versions, and of members that are not asked, change nothing.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2pswarm.swarm.view import Incarnation

OTHER_WEIGHTS = "its weights differ from those of its stage"
OTHER_GRADIENT = "its reduced gradient differs from its stage's"


@dataclass(slots=True)
class _Poll:
    """The reports about one version of one stage."""

    version: int
    waiting: dict[Incarnation, None] = field(default_factory=dict)
    """The members that have yet to report."""
    said: dict[Incarnation, bytes] = field(default_factory=dict)
    """The reports so far; they stay when a member is lost, because it has seen what it said."""
    standing: bytes | None = None


class StageDigests:
    """One poll for each stage, about its newest version."""

    def __init__(self) -> None:
        self._polls: dict[int, _Poll] = {}
        self._tied: list[tuple[int, int]] = []

    def expect(self, stage: int, version: int, members: Iterable[Incarnation]) -> None:
        """These members will report the digest of a version, some of them for the second time."""
        self._poll(stage, version).waiting |= dict.fromkeys(members)

    def report(self, stage: int, version: int, by: Incarnation, digest: bytes) -> None:
        """Hear a member that was expected to report."""
        poll = self._polls.get(stage)
        if poll is None or poll.version != version or by not in poll.waiting:
            return
        del poll.waiting[by]
        poll.said[by] = digest
        self._decide(stage, poll)

    def end(self, member: Incarnation) -> None:
        """An incarnation is over: it will not report."""
        for stage, poll in self._polls.items():
            if poll.waiting.pop(member, True) is None:
                self._decide(stage, poll)

    def believe(self, stage: int, version: int, digest: bytes) -> None:
        """Let a digest stand that nobody can confirm: no member has reported one."""
        self._poll(stage, version).standing = digest

    def known(self, stage: int, version: int) -> bytes | None:
        """The digest of a stage's state of exactly `version`; None before it stands."""
        poll = self._polls.get(stage)
        return poll.standing if poll is not None and poll.version == version else None

    def undecided(self, stage: int, version: int) -> bool:
        """Whether members have yet to report a version before one of its digests stands."""
        poll = self._polls.get(stage)
        return bool(poll and poll.version == version and poll.standing is None and poll.waiting)

    def differing(self) -> list[Incarnation]:
        """The members whose reports are not what stands for their stage; drained by reading."""
        odd = []
        for poll in self._polls.values():
            if poll.standing is not None:
                odd += [by for by, digest in poll.said.items() if digest != poll.standing]
                poll.said = {}
        return odd

    def tied(self) -> list[tuple[int, int]]:
        """Stages and versions where as many members reported one digest as another; drained."""
        drained, self._tied = self._tied, []
        return drained

    def _poll(self, stage: int, version: int) -> _Poll:
        poll = self._polls.get(stage)
        if poll is None or poll.version < version:
            poll = self._polls[stage] = _Poll(version)
        return poll

    def _decide(self, stage: int, poll: _Poll) -> None:
        """Let a digest stand if no other can have more votes any more."""
        if poll.standing is not None or not poll.said:
            return
        votes = Counter(poll.said.values())
        most = max(votes.values())
        if poll.waiting and 2 * most <= len(poll.said) + len(poll.waiting):
            return
        first = [digest for _, digest in sorted(poll.said.items(), key=_by_peer)]
        poll.standing = next(digest for digest in first if votes[digest] == most)
        if list(votes.values()).count(most) > 1:
            self._tied.append((stage, poll.version))


def _by_peer(report: tuple[Incarnation, bytes]) -> bytes:
    return report[0].peer
