"""The digest of each stage's state: what most of its members report.

Errors:  reports about older versions, and of members that are not asked, change nothing.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2pswarm.run.chain.record import DIGEST_BYTES
from p2pswarm.run.member_view import Incarnation


def as_recorded(digest: bytes) -> bytes:
    """A digest as a record has it: filled up with zeros to 32 bytes."""
    return digest.ljust(DIGEST_BYTES, b"\0")


OTHER_WEIGHTS = "its weights differ from those of its stage"
OTHER_GRADIENT = "its reduced gradient differs from its stage's"
ABSENT_S = 2.0  # members find a new coordinator within about a second of each other
UNNAMED_S = 5.0  # longer than a takeover: who is named should be back by then


@dataclass(frozen=True, slots=True)
class Agreement:
    """Reports about one version, of all stages together."""

    equal: int
    """Peers whose digest is that of their stage."""
    compared: int
    """Peers that told one."""


@dataclass(slots=True)
class _Poll:
    """The reports about one version of one stage."""

    version: int
    named: dict[bytes, None] = field(default_factory=dict)
    """The peers that should hold it: they made it of what the record of the step before says."""
    absent: dict[bytes, None] = field(default_factory=dict)
    """Those of them that have not come back yet."""
    waiting: dict[Incarnation, None] = field(default_factory=dict)
    """The members that have yet to report."""
    votes: dict[bytes, bytes] = field(default_factory=dict)
    """Last word of each peer; it stays when a member is lost."""
    said: dict[Incarnation, bytes] = field(default_factory=dict)
    """The reports that are yet to be compared with what stands."""
    since_s: float | None = None
    """Time of the first word while others were absent."""
    standing: bytes | None = None
    proved: bool = False
    """True if what stands is proved, or said by a record."""
    provable: bool = False
    """A proof is on its way: until then a digest stands if all say the same."""

    @property
    def sure(self) -> bool:
        """Return whether what stands is proved, or the word of several against fewer."""
        backed = list(self.votes.values()).count(self.standing or b"")
        return self.proved or (backed > 1 and 2 * backed > len(self.votes))

    @property
    def due_s(self) -> float | None:
        """Return when those who are absent are not waited for any more."""
        if self.since_s is None or self.standing is not None or not self.absent:
            return None
        return self.since_s + (ABSENT_S if self.named.keys() & self.votes.keys() else UNNAMED_S)


class StageDigests:
    """One poll for each stage, about its newest version.

    Every member that must apply a commit reports the digest of what it then holds, when it is
    computed, and every member that reduces a step reports the digest of what it computed the step
    with. The digest with the most votes stands, as soon as no other can overtake it. Where two
    digests have equally many votes, nobody can tell which is right: the one of the first peer id
    stands, and people are told. A peer has one vote, however often it joins.

    Another trainer may have taken over, or all links broke after a commit: then nobody serves a
    stage whose state is not known. The members that the record of the last step names are asked as
    they come back. What one of them says stands when most have said it, when none is absent, or
    some time after the first spoke. Other servers count only if none of these comes: anybody can
    say a digest first.

    Where a run begins there is no record, but the digest can be **proved**: it follows from the
    seed, or a checkpoint's manifest names it. Until that is done, a digest stands while nobody
    says another; when somebody does, none stands. So who speaks first decides nothing.
    """

    def __init__(self) -> None:
        self._polls: dict[int, _Poll] = {}
        self._outvoted: dict[bytes, None] = {}
        """The peers whose reports differ from what surely stands."""
        self._tied: list[tuple[int, int]] = []

    def expect(self, stage: int, version: int, members: Iterable[Incarnation]) -> None:
        """These members will report the digest of a version, some of them for the second time."""
        poll = self._poll(stage, version)
        for member in members:
            poll.waiting[member] = poll.named[member.peer] = None

    def recall(self, stage: int, version: int, peers: Iterable[bytes]) -> None:
        """The record names these as the ones that made a version; they are not here now."""
        poll = self._poll(stage, version)
        poll.named |= dict.fromkeys(peers)
        poll.absent |= dict.fromkeys(peers)

    def on_join(self, member: Incarnation, stage: int, version: int, *, reports: bool) -> bool:
        """A server has joined; returns whether anything is known by that, or asked.

        `reports`: it will say a digest of this version.
        """
        changed = reports
        for poll in self._polls.values():
            changed |= member.peer in poll.absent
            poll.absent.pop(member.peer, None)
        if reports:
            self._poll(stage, version).waiting[member] = None
        for where, poll in self._polls.items():
            changed |= self._decide(where, poll)
        return changed

    def on_report(self, stage: int, version: int, by: Incarnation, digest: bytes) -> None:
        """Hear a member that was expected to report."""
        poll = self._polls.get(stage)
        if poll is None or poll.version != version or by not in poll.waiting:
            return
        del poll.waiting[by]
        poll.said[by] = poll.votes[by.peer] = digest
        self._decide(stage, poll)

    def on_claim(self, stage: int, version: int, by: Incarnation, digest: bytes) -> None:
        """Hear a member that does not serve yet."""
        poll = self._poll(stage, version)
        if poll.version == version:
            poll.waiting.pop(by, None)
            poll.votes[by.peer] = digest
            if poll.provable:
                poll.said[by] = digest  # it may serve before that is compared with the proof
            self._decide(stage, poll)

    def on_end(self, member: Incarnation, *, served: bool) -> None:
        """An incarnation is over: it will not report. Its results are with others if it served."""
        for stage, poll in self._polls.items():
            if not served:
                poll.said.pop(member, None)
                if member.peer not in poll.named:
                    poll.votes.pop(member.peer, None)
            if poll.waiting.pop(member, True) is None:
                if poll.named and not poll.waiting and not poll.named.keys() & poll.votes.keys():
                    poll.absent |= poll.named  # any of them may come back, and holds it
                    poll.since_s = None
                self._decide(stage, poll)
            elif poll.provable:
                self._decide(stage, poll)

    def settle(self, now_s: float) -> bool:
        """Decide without those who have been absent for too long; returns whether any was."""
        settled = False
        for stage, poll in self._polls.items():
            if poll.since_s is None and poll.absent and poll.votes:
                poll.since_s = now_s
            if (due_s := poll.due_s) is not None and now_s >= due_s:
                poll.absent, settled = {}, True
                self._decide(stage, poll)
        return settled

    def next_deadline_s(self) -> float | None:
        """Return when somebody who is absent is not waited for any more."""
        times = (poll.due_s for poll in self._polls.values())
        return min((due_s for due_s in times if due_s is not None), default=None)

    def on_record(self, stage: int, version: int, digest: bytes) -> None:
        """The record says the digest of a version: nobody is asked."""
        poll = self._poll(stage, version)
        poll.standing, poll.proved = digest, True

    def prove(self, stage: int, version: int) -> None:
        """The digest of this version is being proved: the proof follows, or its failure."""
        self._poll(stage, version).provable = True

    def on_proof(self, stage: int, version: int, digest: bytes | None) -> None:
        """The digest of a version is this one, whatever was said; None: what most say stands."""
        poll = self._polls.get(stage)
        if poll is not None and poll.version == version and poll.provable:
            poll.standing, poll.provable, poll.proved = digest, False, digest is not None
            if digest is None:
                self._decide(stage, poll)

    def disputed(self) -> list[int]:
        """The stages of which different digests were said, and whose proof is not here yet."""
        polls = self._polls.items()
        return [stage for stage, poll in polls if poll.provable and len(_different(poll)) > 1]

    def known(self, stage: int, version: int) -> bytes | None:
        """The digest of a stage's state of exactly `version`; None before it stands."""
        poll = self._polls.get(stage)
        return poll.standing if poll is not None and poll.version == version else None

    def agreement(self, version: int) -> Agreement:
        """Return how many peers told a digest of a version, and how many what stands."""
        polls = [one for one in self._polls.values() if one.version == version and one.standing]
        equal = sum(list(one.votes.values()).count(one.standing or b"") for one in polls)
        return Agreement(equal, sum(len(one.votes) for one in polls))

    def differing(self) -> list[Incarnation]:
        """The members whose reports are not what stands for their stage; drained by reading."""
        odd = []
        for poll in self._polls.values():
            if poll.standing is not None and not poll.provable:
                wrong = [by for by, digest in poll.said.items() if digest != poll.standing]
                odd += wrong
                if poll.sure:
                    self._outvoted |= dict.fromkeys(by.peer for by in wrong)
                poll.said = {}
        return odd

    def outvoted(self) -> list[bytes]:
        """Those of them that are surely wrong, and not one of two; drained by reading."""
        drained, self._outvoted = self._outvoted, {}
        return list(drained)

    def sure(self, stage: int, version: int) -> bool:
        """Return whether what is `known` is more than the word of one against another's."""
        poll = self._polls.get(stage)
        return poll is not None and poll.version == version and poll.sure

    def tied(self) -> list[tuple[int, int]]:
        """Stages and versions where as many members reported one digest as another; drained."""
        drained, self._tied = self._tied, []
        return drained

    def _poll(self, stage: int, version: int) -> _Poll:
        poll = self._polls.get(stage)
        if poll is None or poll.version < version:
            poll = self._polls[stage] = _Poll(version)
        return poll

    def _decide(self, stage: int, poll: _Poll) -> bool:
        """Let a digest stand if no other can have more votes any more; whether that is news."""
        if poll.provable:
            before, different = poll.standing, _different(poll)
            poll.standing = different[0] if len(different) == 1 else None
            return poll.standing != before
        if poll.standing is not None:
            return False
        pending = poll.absent.keys() | {one.peer for one in poll.waiting}
        heard = pending | poll.votes.keys()
        electors = poll.named.keys() & heard or heard  # others count if nobody named comes
        pending &= electors
        said = {
            peer: digest
            for peer, digest in poll.votes.items()
            if peer in electors and peer not in pending
        }
        if not said:
            return False
        votes = Counter(said.values())
        most = max(votes.values())
        if pending and 2 * most <= len(said) + len(pending):
            return False
        poll.standing = next(said[peer] for peer in sorted(said) if votes[said[peer]] == most)
        if list(votes.values()).count(most) > 1:
            self._tied.append((stage, poll.version))
        return True


def _different(poll: _Poll) -> list[bytes]:
    """The digests that were said, also by a server that says another one by now."""
    return list(dict.fromkeys((*poll.votes.values(), *poll.said.values())))
