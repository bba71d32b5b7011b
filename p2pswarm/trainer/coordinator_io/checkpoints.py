"""Checkpoints of a run: when its state is saved, by whom, what is written, and when it is whole.

Source:  docs/checkpoints.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from p2pswarm.base.errors import BadMessage, NotSaved
from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.checkpoint_manifest import CheckpointManifest, Cursor, SavedStage
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.writer import chain_file, joined, saved_by
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.progress.events import Checkpointed, CheckpointFailed
from p2pswarm.run.chain.chain import Branch, Chain, ChainHead, Genesis
from p2pswarm.run.chain.chain_log import ChainStore, log_entry, log_header
from p2pswarm.run.chain.record import MEMORY_BYTES, digest
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.checkpoint import LoadState, Saved, Saving
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import CheckpointConfig
from p2pswarm.settings.parser import run_to_json
from p2pswarm.trainer.reports.reports import CheckpointProgress, StateFetched

WRITERS = 2  # of each stage: one may die, and its disk with it
SECOND_COPY_S = 5.0  # how long a whole checkpoint waits for the copies that are still being written
PROGRESS_EVERY_S = 1.0  # for people; each writer says a word as often
QUIET_S = 60.0  # a writer whose file has not grown for so long counts as failed

Holders = Sequence[Sequence[Incarnation]]
"""By stage: the ready members, which hold the version that is to be saved, by peer id."""


@dataclass(frozen=True, slots=True)
class AskToSave:
    """Action: ask a member to write its stage."""

    writer: Incarnation
    version: int
    head: bytes


@dataclass(frozen=True, slots=True)
class SaveHere:
    """Action: fetch the state of a stage and write its file, which none of its servers may."""

    stage: int
    version: int
    head: bytes


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Action: write records and manifest."""

    version: int
    head: bytes
    stages: tuple[SavedStage, ...]


CheckpointAction = (
    AskToSave
    | SaveHere
    | WriteManifest
    | Checkpointed
    | CheckpointFailed
    | CheckpointProgress
    | StateFetched
)


@dataclass(slots=True)
class _Writer:
    stage: int
    heard_s: float
    written: int = 0
    size: int = 0
    saved: SavedStage | None = None
    failed: str = ""
    refused: bool = False
    """Its owner does not let it write to the target."""

    @property
    def writing(self) -> bool:
        return self.saved is None and not self.failed


@dataclass(slots=True)
class _Pending:
    """The checkpoint that is being written."""

    version: int
    head: bytes
    begun_s: float
    writers: dict[Incarnation, _Writer] = field(default_factory=dict)
    spare: dict[int, list[Incarnation]] = field(default_factory=dict)
    """Holders of each stage that were not asked; they are where a writer's owner forbids it."""
    here: dict[int, _Writer] = field(default_factory=dict)
    """The stages whose files this trainer writes itself."""
    whole_s: float | None = None
    """Time at which the last stage got its first file."""
    publishing: bool = False

    def spare_stage(self, member: Incarnation) -> int | None:
        return next((stage for stage, some in self.spare.items() if member in some), None)

    def all_writers(self) -> list[_Writer]:
        return [*self.writers.values(), *self.here.values()]

    def stages_saved(self) -> set[int]:
        return {w.stage for w in self.all_writers() if w.saved is not None}


class Checkpoints:
    """The checkpoints of one run, as its trainer has them written.

    After every so many steps two members of each stage are asked to write their stage's file,
    while training goes on. When each stage has a file, the manifest is written, and only then is
    the version saved. One checkpoint is written at a time. Whatever fails costs one checkpoint and
    nothing else: no step waits for it.

    A member opens no target that its owner does not allow. Where none of a stage may write, this
    trainer fetches the stage's state and writes it; the steps stand still while it does.
    """

    def __init__(self, cut: Sequence[range], every_steps: int, last: int, first: int = 0) -> None:
        """`cut`: the blocks of each stage; `first`, `last`: the run's versions at both ends."""
        self._cut = cut
        self._every_steps = every_steps
        self._last = last
        self.saved = first
        """The newest version that is known to be saved; at first, the one the run began with."""
        self._now: _Pending | None = None
        self._next: tuple[int, bytes, Holders] | None = None
        self._refusing: set[Incarnation] = set()
        """Members whose owners do not let them write to the target."""
        self._told: frozenset[int] = frozenset()
        """The stages of which people know that their servers may not write."""
        self._watched = False
        self._progress_due_s = float("-inf")
        self._actions: list[CheckpointAction] = []

    @property
    def idle(self) -> bool:
        """True if nothing is being written, nor about to be."""
        return self._now is None and self._next is None

    @property
    def under_way(self) -> set[int]:
        """The versions that are being saved, or are about to be."""
        now = {self._now.version} if self._now is not None else set()
        return now | ({self._next[0]} if self._next is not None else set())

    def drain(self) -> list[CheckpointAction]:
        """Return what to do now; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def on_decision(self, version: int, head: bytes, holders: Holders, now_s: float) -> None:
        """A step is decided, which makes `version`: begin a checkpoint of it if one is due."""
        if version % self._every_steps and version != self._last:
            return
        if version == self._last:
            self.save(version, head, holders, now_s)
        elif self._now is None:
            self._begin(version, head, holders, now_s)
        else:
            reason = f"that of step {self._now.version} is still being written"
            self._actions.append(CheckpointFailed(version, reason))

    def save(self, version: int, head: bytes, holders: Holders, now_s: float) -> None:
        """Save `version` whether it is due or not, after what is being written now."""
        if version <= self.saved or (self._now is not None and self._now.version == version):
            return
        if self._now is None:
            self._begin(version, head, holders, now_s)
        else:
            self._next = version, head, holders

    def watch(self) -> None:
        """Somebody waits for the checkpoint: report how far it is."""
        self._watched = True

    def on_file(self, by: Incarnation, report: Saved, now_s: float) -> None:
        """A member says that its file is whole."""
        writer = self._writer(by, report.step)
        if writer is None or not writer.writing:
            return
        saved = saved_by(report, PeerId(by.peer), len(self._cut))
        blocks = self._cut[writer.stage]
        place = (report.stage, report.first_block, report.end_block)
        if place != (writer.stage, blocks.start, blocks.stop):
            raise BadMessage(f"it saved blocks {place}, not those of stage {writer.stage}")
        writer.saved, writer.size = saved, writer.size or report.size
        self._judge(now_s)

    def on_progress(self, by: Incarnation, note: Saving, now_s: float) -> None:
        """A member says how far its file is, or why there will be none."""
        writer = self._writer(by, note.step)
        if writer is None or not writer.writing:
            return
        if note.written > writer.written:
            writer.heard_s = now_s
        writer.written, writer.size, writer.failed = note.written, note.size, note.failed
        writer.refused = note.refused
        if note.refused:
            self._refusing.add(by)
            self._ask_another(writer.stage, now_s)
        self._judge(now_s)

    def on_end(self, member: Incarnation, now_s: float) -> None:
        """A member is gone; a file that it has finished counts all the same."""
        self._refusing.discard(member)
        checkpoint = self._now
        if checkpoint is not None and (stage := checkpoint.spare_stage(member)) is not None:
            checkpoint.spare[stage].remove(member)
        if checkpoint is None or (writer := checkpoint.writers.get(member)) is None:
            return
        if writer.writing:
            writer.failed = "its server is lost"
            self._judge(now_s)

    def on_own_file(self, version: int, saved: SavedStage, now_s: float) -> None:
        """This trainer's own file of a stage is whole."""
        if (writer := self._own_writer(version, saved.stage)) is not None:
            writer.saved, writer.size = saved, saved.digest.size
            self._judge(now_s)

    def on_own_failure(self, version: int, stage: int, reason: str, now_s: float) -> None:
        """This trainer could not write a stage itself."""
        if (writer := self._own_writer(version, stage)) is not None:
            writer.failed = reason
            self._judge(now_s)

    def on_later_version(self, version: int, now_s: float) -> bool:
        """The run has gone on before its state could be fetched; whether anything ends by that.

        Servers said too late that they may not write. From now on that is known beforehand.
        """
        if self._now is None or self._now.version != version or self._now.publishing:
            return False
        self._end(now_s)
        return True

    def on_manifest(self, version: int, place: str, now_s: float) -> None:
        """The manifest is written."""
        checkpoint = self._now
        assert checkpoint is not None, "its manifest was asked for"
        self.saved = version
        self._actions.append(Checkpointed(version, place, now_s - checkpoint.begun_s))
        self._end(now_s)

    def on_manifest_failure(self, version: int, reason: str, now_s: float) -> None:
        """The manifest cannot be written: there is no checkpoint."""
        self._actions.append(CheckpointFailed(version, reason))
        self._end(now_s)

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`, if nothing happens before."""
        checkpoint = self._now
        if checkpoint is None or checkpoint.publishing:
            return None
        due_s = [w.heard_s + QUIET_S for w in checkpoint.writers.values() if w.writing]
        if checkpoint.whole_s is not None:
            due_s.append(checkpoint.whole_s + SECOND_COPY_S)
        return min(due_s, default=None)

    def on_deadline(self, now_s: float) -> None:
        """Give up writers of which nothing is heard, and copies for which nobody waits longer."""
        checkpoint = self._now
        if checkpoint is None or checkpoint.publishing:
            return
        for writer in checkpoint.writers.values():
            if writer.writing and now_s >= writer.heard_s + QUIET_S:
                writer.failed = f"its file has not grown for {QUIET_S:g} s"
        self._judge(now_s)

    def _writer(self, by: Incarnation, version: int) -> _Writer | None:
        """The writer of the present checkpoint; None for one that is over."""
        checkpoint = self._now
        if checkpoint is None or checkpoint.version != version or checkpoint.publishing:
            return None
        return checkpoint.writers.get(by)

    def _own_writer(self, version: int, stage: int) -> _Writer | None:
        checkpoint = self._now
        if checkpoint is None or checkpoint.version != version or checkpoint.publishing:
            return None
        return checkpoint.here.get(stage)

    def _begin(self, version: int, head: bytes, holders: Holders, now_s: float) -> None:
        checkpoint = self._now = _Pending(version, head, now_s)
        for stage, members in enumerate(holders):
            willing = [member for member in members if member not in self._refusing]
            for member in willing[:WRITERS]:
                checkpoint.writers[member] = _Writer(stage, now_s)
            checkpoint.spare[stage] = willing[WRITERS:]
            if members and not willing:
                self._save_here(checkpoint, stage)
        self._actions += [AskToSave(member, version, head) for member in checkpoint.writers]
        self._judge(now_s)

    def _ask_another(self, stage: int, now_s: float) -> None:
        """Have another holder of a stage write in place of one that may not."""
        checkpoint = self._now
        assert checkpoint is not None, "one of its writers has spoken"
        if checkpoint.spare[stage]:
            member = checkpoint.spare[stage].pop(0)
            checkpoint.writers[member] = _Writer(stage, now_s)
            self._actions.append(AskToSave(member, checkpoint.version, checkpoint.head))

    def _save_here(self, checkpoint: _Pending, stage: int) -> None:
        checkpoint.here[stage] = _Writer(stage, math.inf)
        self._actions.append(SaveHere(stage, checkpoint.version, checkpoint.head))
        if stage not in self._told:
            self._told |= {stage}
            self._actions.append(StateFetched(stage))

    def _judge(self, now_s: float) -> None:
        """End what cannot be finished; write the manifest when there is nothing to wait for."""
        checkpoint = self._now
        assert checkpoint is not None, "something was said about it"
        for stage in range(len(self._cut)):
            of_stage = [w for w in checkpoint.all_writers() if w.stage == stage]
            if all(w.failed for w in of_stage):
                if stage not in checkpoint.here and any(w.refused for w in of_stage):
                    self._save_here(checkpoint, stage)
                    continue
                reasons = "; ".join(dict.fromkeys(w.failed for w in of_stage))
                why = reasons or "no server holds it"
                self.on_manifest_failure(
                    checkpoint.version, f"stage {stage} was not saved: {why}", now_s
                )
                return
        if self._watched and now_s >= self._progress_due_s:
            self._progress_due_s = now_s + PROGRESS_EVERY_S
            self._report_progress(checkpoint)
        if len(checkpoint.stages_saved()) < len(self._cut):
            return
        if checkpoint.whole_s is None:
            checkpoint.whole_s = now_s
        writing = any(w.writing for w in checkpoint.all_writers())
        if now_s >= checkpoint.whole_s + SECOND_COPY_S or not writing:
            self._publish(checkpoint, now_s)

    def _publish(self, checkpoint: _Pending, now_s: float) -> None:
        saved = [w.saved for w in checkpoint.all_writers() if w.saved is not None]
        try:
            stages = joined(saved, self._cut)
        except NotSaved as error:
            self.on_manifest_failure(checkpoint.version, str(error), now_s)
            return
        checkpoint.publishing = True
        self._actions.append(WriteManifest(checkpoint.version, checkpoint.head, stages))

    def _report_progress(self, checkpoint: _Pending) -> None:
        writers = checkpoint.all_writers()
        self._actions.append(
            CheckpointProgress(
                checkpoint.version,
                sum(w.size if w.saved is not None else w.written for w in writers),
                sum(w.size for w in writers),
                len(checkpoint.stages_saved()),
                len(self._cut),
            )
        )

    def _end(self, now_s: float) -> None:
        """Begin the checkpoint that waits, if there is one."""
        self._now = None
        if self._next is not None:
            version, head, holders = self._next
            self._next = None
            self.save(version, head, holders, now_s)


NO_VOTER = bytes(MEMORY_BYTES)
"""The memory of a file that no voter keeps."""


@dataclass(frozen=True, slots=True)
class ChainMark:
    """A place in the chain."""

    head: bytes = b""
    """The hash of the newest record there; empty before the first."""
    height: int = 0


class SavedChain:
    """A trainer's copy of its run's chain.

    Records that only changed the voters since then are left out: they say nothing about the
    weights.
    """

    def __init__(self, chain: Chain, store: ChainStore) -> None:
        self._chain = chain
        self._store = store

    @property
    def head(self) -> ChainHead:
        """The newest record; until one says what is saved, that is what the run began with."""
        return self._chain.head

    @property
    def genesis(self) -> Genesis:
        """Return what the first record was checked against."""
        return self._chain.genesis

    def branch(self) -> Branch:
        """Return what each version is, from all records. Blocks while they are read."""
        branch = Branch()
        for record in self._store.records(0, self._chain.head.height):
            branch.append(record)
        return branch

    def mark(self) -> ChainMark:
        """The place behind the record that made the present version."""
        last = self._chain.last
        return ChainMark() if last is None else ChainMark(digest(last), last.height + 1)

    def records(self, mark: ChainMark) -> bytes | None:
        """All records up to a mark, as a chain file has them; None if some are not here."""
        if not mark.height:
            return None
        entries = [log_entry(record) for record in self._store.records(0, mark.height)]
        if len(entries) < mark.height:
            return None
        return b"".join([log_header(self._chain.genesis.run, NO_VOTER), *entries])


@dataclass(frozen=True, slots=True)
class ResumedFrom:
    """The checkpoint that a run goes on from, or goes back to, and where it lies."""

    origin: RunOrigin
    target: str
    folder: str
    """Of the checkpoint in the target; empty if the target is the checkpoint."""

    def order(self, run: bytes) -> LoadState:
        """Return what a new member is told."""
        return LoadState(run, self.target, self.folder, self.origin)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavingPlan:
    """Target and signature of one run's checkpoints."""

    config: CheckpointConfig
    store: CheckpointStore
    """The target, as this machine reaches it."""
    identity: Identity
    """Signs the manifests."""
    corpus: bytes
    """The digest of the text."""


def manifest_of(
    plan: SavingPlan,
    config: RunConfig,
    run_id: bytes,
    what: WriteManifest,
    records: bytes | None,
    began: RunOrigin | None = None,
) -> CheckpointManifest:
    """Return the manifest of a checkpoint; `records`: its chain, if that is whole.

    `began`: what the run began from.
    """
    version = what.version
    return CheckpointManifest(
        run=run_id,
        config=run_to_json(config),
        step=version,
        head=what.head,
        chain=None if records is None else chain_file(records),
        cursor=Cursor(
            optimizer_step=version + (0 if began is None else began.before),
            next_microbatch=version * config.batch.microbatches,
            next_learning_rate=learning_rate(config, version),
            seed=config.seed,
            corpus=plan.corpus,
        ),
        stages=what.stages,
        origin=began,
    )
