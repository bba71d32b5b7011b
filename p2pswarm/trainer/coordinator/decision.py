"""From the end of a step to its record, and from a record to where the next coordinator begins.

Source:  docs/chain.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from p2pswarm.net.crypto.identity import SIGNATURE_BYTES
from p2pswarm.run.chain.chain import Chain, ChainHead, CodecTable
from p2pswarm.run.chain.record import (
    NO_DIGEST,
    QUARANTINED,
    CommitRecord,
    RecordKind,
    StageCommit,
    VoterId,
    first_number,
)
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import HeldReduction, Join
from p2pswarm.run.messages.step import Commit
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import StepDone
from p2pswarm.trainer.step.stage_digests import as_recorded


class Welcome(Enum):
    """The way of a server that joins to the current weights."""

    FETCH = "it downloads them, or draws the first ones"
    KEEP = "it has them"
    RESEND = "it has the weights before the last commit and the gradient: it gets the commit again"


@dataclass(frozen=True, slots=True)
class DecidedStep:
    """The commit of one step, and what it applies to: kept, to be sent again.

    A commit may reach nobody: the trainer froze, or a link broke. Then all servers of a stage come
    back with the weights before the commit and with the reduced gradient that it applies.
    """

    step: int
    scale: float
    learning_rate: float
    gradients: dict[int, bytes]
    """The digest of each stage's reduced gradient, as the step's record has it."""
    states: dict[int, bytes]
    """The digest of each stage's state before the commit, as the record has it; where known."""
    members: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """The peers that averaged each stage's gradient: they hold what the commit applies to."""

    def applies_to(self, join: Join) -> bool:
        """Return whether a server that joins could apply this commit to what it holds."""
        if join.stage is None or self._held_by(join) is None:
            return False
        state = as_recorded(join.digest)
        return state == self.states.get(join.stage, state)

    def commit(self, run: bytes, join: Join, to: Incarnation) -> Commit:
        """The commit for one that holds the reduction of any generation with these bytes."""
        held = self._held_by(join)
        assert held is not None, "asked only after `applies_to`"
        state = b"" if join.stage is None else self.states.get(join.stage, b"")
        numbers = self.scale, self.learning_rate
        return Commit(run, self.step, held.generation, to.number, *numbers, state)

    def _held_by(self, join: Join) -> HeldReduction | None:
        """The reduction that a server holds for this commit; None if it has another state."""
        if join.stage is None or join.version != self.step:
            return None
        wanted = self.gradients.get(join.stage)
        fits = (h for h in join.held if h.step == self.step and as_recorded(h.digest) == wanted)
        return next(fits, None)


KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class CoordinatorStart:
    """Start of a coordinator: its term, and what was decided before."""

    term: int = 0
    """Numbers of incarnations and generations begin at `first_number(term)`."""
    version: int = 0
    """Of the weights: the step that it begins with."""
    last: DecidedStep | None = None
    """The last decided step, for members that were not told its commit."""
    gathers: bool = True
    """Nothing is decided yet: it waits until each stage has its servers."""
    era: int = 0
    """Number of rollbacks: weights of another era are not those of this one."""
    states: Mapping[int, bytes] = field(default_factory=dict)
    """The digest of each stage's state of `version`, where the chain names it."""
    loads: bool = False
    """The state of `version` is in a checkpoint."""
    provable: bool = False
    """No record names the states of `version`, but their digests are being computed."""
    numbered: int = 0
    """The highest number that was given in this term before."""
    codecs: tuple[CodecTable, ...] = ()
    """What the records choose, step by step, from `version` on; empty: nothing yet."""
    references: tuple[int, ...] = ()
    """The batches of answers whose references are to be computed before the first step."""

    @property
    def former(self) -> int:
        """Incarnations and generations are numbered from the next one on."""
        return max(first_number(self.term), self.numbered)

    @property
    def averaged(self) -> frozenset[bytes]:
        """The peers that averaged the last decided step."""
        members = self.last.members.values() if self.last is not None else ()
        return frozenset(peer for stage in members for peer in stage)

    @classmethod
    def of_chain(cls, term: int, head: ChainHead, chain: Chain, numbered: int) -> Self:
        """The leader of `term` begins at `head`, the last decided record of `chain`."""
        drawn = chain.genesis.checkpoint == NO_DIGEST
        start = cls.after(term, head, chain.last, chain.era, numbered, drawn=drawn)
        return replace(start, codecs=chain.chosen)

    @classmethod
    def after(
        cls,
        term: int,
        head: ChainHead,
        last: CommitRecord | None,
        era: int = 0,
        numbered: int = 0,
        *,
        drawn: bool = True,
    ) -> Self:
        """The leader of `term` begins at `head`; `last` is the record that made its version.

        `drawn`: version 0 is drawn from the seed; else it is a checkpoint's.
        """
        loads = head.version > 0 or not drawn
        if last is None:
            return cls(term, head.version, era=era, loads=loads)
        states = {
            stage: commit.state
            for stage, commit in enumerate(last.stages)
            if commit.state != NO_DIGEST
        }
        if last.kind == RecordKind.BACK:
            return cls(
                term,
                head.version,
                gathers=False,
                era=era,
                states=states,
                loads=loads,
                numbered=numbered,
            )
        gradients = {stage: commit.gradient for stage, commit in enumerate(last.stages)}
        members = {
            stage: tuple(one.peer for one in commit.members)
            for stage, commit in enumerate(last.stages)
        }
        numbers = last.step, last.scale, last.learning_rate
        decided = DecidedStep(*numbers, gradients, states, members)
        return cls(term, head.version, decided, gathers=False, era=era)


FROM_THE_FIRST = CoordinatorStart()
"""A run from its first step, without voters that gave anybody a term."""


def unsigned_record(
    decide: act.Decide,
    head: ChainHead,
    term: int,
    run_id: bytes,
    config: RunConfig,
    trainers: tuple[bytes, ...],
    voters: tuple[VoterId, ...],
) -> CommitRecord:
    """The record of a step, to be signed by the leader of `term`."""
    size = config.batch.microbatches
    return CommitRecord(
        run=run_id,
        prev=head.digest,
        term=term,
        height=head.height,
        step=decide.step,
        kind=RecordKind.COMMIT,
        generation=decide.generation,
        scale=decide.scale,
        learning_rate=decide.learning_rate,
        loss=decide.loss,
        gradient_norm=decide.gradient_norm,
        first=decide.step * size,
        count=size,
        stages=decide.stages,
        trainers=trainers,
        voters=voters,
        voters_before=head.voters,
        saved=head.saved,
        key=bytes(KEY_BYTES),
        signature=bytes(SIGNATURE_BYTES),
    )


def back_to(version: int, states: tuple[bytes, ...]) -> act.Decide:
    """Return what the voters are asked when the run is to go back; `states`: of each stage."""
    stages = tuple(StageCommit((), b"", as_recorded(state), b"") for state in states)
    return act.Decide(version, 0, 0.0, 0.0, None, 0.0, stages)


def voters_only(head: ChainHead, stages: int) -> act.Decide:
    """Return what the voters are asked when others are to vote before the step is done."""
    blank = StageCommit((), b"", NO_DIGEST, b"")
    return act.Decide(head.version, 0, 0.0, 0.0, None, 0.0, (blank,) * stages)


def as_voters(record: CommitRecord) -> CommitRecord:
    """The record of a step as one that changes the voters, and nothing else."""
    return replace(record, kind=RecordKind.VOTERS, first=0, count=0, gradient_norm=None)


def as_back(record: CommitRecord) -> CommitRecord:
    """The record of a step as one that makes the weights before that step current again."""
    back = RecordKind.BACK
    return replace(record, kind=back, first=0, count=0, gradient_norm=None, saved=record.step)


def report_of_inherited(record: CommitRecord, told: CommitRecord | None) -> StepDone | None:
    """What people hear of a step that a leader has decided again before it leads; None: nothing.

    Its first coordinator may have stopped before it knew that the step was decided. `told`: what
    this trainer had proposed last when its process began, which it has told in its former life.
    """
    if record.kind != RecordKind.COMMIT or record == told:
        return None
    holders = record.stages[0].holders
    aside = (number for number, one in enumerate(holders, record.first) if one == QUARANTINED)
    return StepDone(
        record.step,
        math.nan if record.loss is None else record.loss,
        math.nan if record.gradient_norm is None else record.gradient_norm,
        record.learning_rate,
        record.count,
        tuple(aside),
    )
