"""Checkpoints in the making: carries out what the rules of `checkpoints` ask for."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from p2pswarm.base.errors import NotSaved, SwarmError, Unusable
from p2pswarm.base.signal import Signal
from p2pswarm.checkpoint.checkpoint_io import on_thread, save_stage
from p2pswarm.checkpoint.checkpoint_manifest import SavedStage
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.digests import PIECE_BYTES
from p2pswarm.checkpoint.names import CheckpointId
from p2pswarm.checkpoint.retention import prune
from p2pswarm.checkpoint.writer import StageToSave, write_manifest
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.net.wire.message import Message
from p2pswarm.progress.events import CheckpointFailed
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.checkpoint import Saved, SaveState, Saving
from p2pswarm.run.state.base import Snapshot
from p2pswarm.run.state.host_state import StateSize
from p2pswarm.tensors.flat_layout import FlatLayout
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator_io.checkpoints import (
    AskToSave,
    ChainMark,
    Checkpoints,
    SavedChain,
    SaveHere,
    SavingPlan,
    WriteManifest,
    manifest_of,
)
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.reports.actions import SeekCopy
from p2pswarm.trainer.reports.reports import NewestCopy

TRIES_MAX = 3  # to save the last version: a step may be decided meanwhile
FETCH_S = 3600.0  # for the state of one stage: 36 GB at 100 Mbit/s


async def in_pieces(state: memoryview) -> AsyncGenerator[memoryview]:
    """A state as a file's writer takes it."""
    for start in range(0, len(state), PIECE_BYTES):
        yield state[start : start + PIECE_BYTES]


class CheckpointsIo:
    """The checkpoints of a trainer's run."""

    def __init__(
        self,
        context: TrainerContext,
        plan: SavingPlan,
        coordinator: Coordinator,
        chain: SavedChain,
        tell: Callable[[Incarnation, Message], None],
        fetch: Callable[[int, StateSize], Awaitable[Snapshot]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`tell`: send a message on a member's stream; `fetch`: download the state of a stage."""
        run = context.run
        self._chain = chain
        self._marks: dict[int, ChainMark] = {}
        """End of the chain at each version that is being saved."""
        self._context = context
        self._plan = plan
        self._coordinator = coordinator
        self._tell = tell
        self._fetch = fetch
        self._own: dict[asyncio.Task[None], None] = {}
        """The files that this trainer writes itself."""
        self._layouts: dict[int, FlatLayout] = {}
        self._tasks = tasks
        self._rules = Checkpoints(
            [stage_blocks(run, stage) for stage in range(run.stages)],
            plan.config.every_steps,
            run.steps,
            chain.head.saved,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._changed = Signal()
        self._closed = False
        self._newest: tuple[str, float] | None = None

    @property
    def saved(self) -> int:
        """The newest version that is known to be saved; at first, the one the run began with."""
        return self._rules.saved

    @property
    def newest(self) -> tuple[str, float] | None:
        """Return where the newest checkpoint is and how old; None if it was not written here."""
        if self._newest is None:
            return None
        place, at_s = self._newest
        return place, self._now_s() - at_s

    def on_decision(self, version: int) -> None:
        """A step is decided; the members are told its commit in this moment."""
        mark = self._mark(version)
        self._rules.on_decision(version, mark.head, self._holders(), self._now_s())
        self._pump()

    def on_report(self, by: Incarnation | None, note: Message) -> bool:
        """Take a note of a member; False if it is about something else."""
        if by is None or not isinstance(note, Saved | Saving):
            return False
        if note.run == self._context.run_id:
            if isinstance(note, Saved):
                self._rules.on_file(by, note, self._now_s())
            else:
                self._rules.on_progress(by, note, self._now_s())
            self._pump()
        return True

    def on_end(self, member: Incarnation) -> None:
        """A member is gone."""
        self._rules.on_end(member, self._now_s())
        self._pump()

    def save_now(self) -> None:
        """Save the present version, whether it is due or not."""
        version = self._coordinator.step
        head = self._mark(version).head
        self._rules.save(version, head, self._holders(), self._now_s())
        self._pump()

    async def finish(self) -> None:
        """Save the present version, and wait until nothing is being written."""
        self._rules.watch()
        for _ in range(TRIES_MAX):
            version = self._coordinator.step
            self.save_now()
            while not self._rules.idle:
                await self._changed.wait()
            if self._coordinator.step in (self._rules.saved, version):
                return

    def close(self) -> None:
        """Ask for nothing more."""
        self._closed = True
        for task in self._own:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _mark(self, version: int) -> ChainMark:
        if version not in self._marks:
            under_way = self._rules.under_way
            self._marks = {v: m for v, m in self._marks.items() if v in under_way}
            self._marks[version] = self._chain.mark()
        return self._marks[version]

    def _holders(self) -> list[list[Incarnation]]:
        """The members of each stage that hold the weights; those that leave come last."""
        members = self._coordinator.members
        ready = [members.ready(stage) for stage in range(self._context.run.stages)]
        return [
            sorted((one.incarnation for one in stage), key=lambda one: one in members.leaving)
            for stage in ready
        ]

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _pump(self) -> None:
        while actions := self._rules.drain():
            for action in actions:
                match action:
                    case AskToSave(writer, version, head):
                        target = self._plan.config.target
                        order = SaveState(self._context.run_id, version, head, target)
                        self._tell(writer, order)
                    case SaveHere():
                        task = self._tasks.create_task(self._save_here(action))
                        self._own[task] = None
                        task.add_done_callback(lambda done: self._own.pop(done, None))
                    case WriteManifest():
                        self._tasks.create_task(self._publish(action))
                    case _:
                        self._context.report(action)
        self._changed.fire()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._rules.next_deadline_s()
        if due_s is not None and not self._closed:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._rules.on_deadline(self._now_s())
        self._pump()

    async def _save_here(self, order: SaveHere) -> None:
        """Write a stage's file, from the state that its servers give."""
        try:
            saved = await self._fetched(order)
        except (SwarmError, TimeoutError) as error:
            reason = str(error) or "its state did not come in time"
            self._rules.on_own_failure(order.version, order.stage, reason, self._now_s())
        else:
            if saved is not None:
                self._rules.on_own_file(order.version, saved, self._now_s())
            elif self._rules.on_later_version(order.version, self._now_s()):
                self.save_now()
        self._pump()

    async def _fetched(self, order: SaveHere) -> SavedStage | None:
        """The file of a stage; None if the run has gone on to another version before."""
        plan, run, stage = self._plan, self._context.run, order.stage
        blocks = stage_blocks(run, stage)
        if (layout := self._layouts.get(stage)) is None:  # else the steps stand still at once
            layout = self._layouts[stage] = await on_thread(lambda: layout_of(run, blocks))
        async with asyncio.timeout(FETCH_S):
            state = await self._fetch(stage, StateSize.of(layout))
        if state.version != order.version:
            return None

        async def agreed() -> bytes:
            return state.digest

        what = StageToSave(
            id=CheckpointId(run.name, self._context.run_id, order.version, order.head),
            stage=stage,
            stages=run.stages,
            blocks=blocks,
            layout=layout,
            agreed=agreed,
        )
        return await save_stage(
            plan.store, what, in_pieces(state.data), plan.identity.peer_id.short
        )

    async def _publish(self, action: WriteManifest) -> None:
        plan, context, version = self._plan, self._context, action.version
        mark = self._marks[version]
        try:
            records = await on_thread(lambda: self._chain.records(mark))
            about = context.run, context.run_id, action, records, context.began
            manifest = manifest_of(plan, *about)
            await on_thread(lambda: write_manifest(plan.store, manifest, plan.identity, records))
        except (NotSaved, Unusable) as error:
            self._rules.on_manifest_failure(version, str(error), self._now_s())
            self._pump()
            return
        place = f"{plan.store.place.rstrip('/')}/{manifest.id().folder}"
        self._newest = place, self._now_s()
        self._rules.on_manifest(version, place, self._now_s())
        self._pump()
        try:
            await on_thread(
                lambda: prune(plan.store, context.run_id, plan.config, Wanted(), version)
            )
        except NotSaved as error:
            context.report(CheckpointFailed(version, f"old ones could not be deleted: {error}"))


def newest_copy(
    sought: SeekCopy, plan: SavingPlan | None, keeper: CheckpointsIo | None
) -> NewestCopy:
    """Return what people are told of weights that no server has brought back."""
    if plan is None or keeper is None:
        return NewestCopy(sought.stages, sought.version, None, "", None, None)
    place, age_s = keeper.newest or (plan.store.place, None)
    saved = keeper.saved or None  # the first weights are in no checkpoint
    return NewestCopy(sought.stages, sought.version, saved, place, age_s, sought.rewind_s)
