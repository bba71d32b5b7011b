"""Looks for what a run rolls back to: reads the target beside training, asks for the decision."""

import asyncio
from collections.abc import Callable

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.checkpoint_io import on_thread
from p2pswarm.trainer.coordinator_io.checkpoints import SavedChain
from p2pswarm.trainer.coordinator_io.coordinator_io import CoordinatorIo
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.rollback import Rollback, SavedPast
from p2pswarm.trainer.reports.reports import CannotGoBack

LOOK_AGAIN_S = 10.0  # nothing tells when a target can be read again


class RollbackIo:
    """One trainer's looks into its run's target.

    The rules of `rollback` say where to; the coordinator says whether the run still may. What is
    wrong with a target becomes a report.
    """

    def __init__(
        self,
        context: TrainerContext,
        chain: SavedChain,
        propose: Callable[[Rollback], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`propose`: have it decided that the run goes back, if it still may."""
        self._context = context
        self._propose = propose
        self._tasks = tasks
        self._chain = chain
        self._looking: asyncio.Task[None] | None = None
        self._found: Rollback | None = None

    def begin(self, coordination: CoordinatorIo) -> None:
        """A stage has been lost for too long: look where to go back to."""
        may = coordination.coordinator.may_go_back
        if may and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.create_task(self._look(coordination))

    def find_present(self, coordination: CoordinatorIo) -> None:
        """Tell a new coordination where the state is that its members begin with."""
        found = self._found
        if found is not None and found.source and found.version == self._chain.head.version:
            coordination.load_from(found.source.order(self._context.run_id))
            return
        self.close()
        self._looking = self._tasks.create_task(self._find_present(coordination))

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self, coordination: CoordinatorIo) -> None:
        past, keeper = self._past(), coordination.keeper
        if past is None or keeper is None:
            return
        saved = keeper.saved
        try:
            found = await on_thread(lambda: past.going_back(saved))
        except Unusable as error:
            self._context.report(CannotGoBack(str(error)))
            return
        for refusal in found.refusals:
            self._context.report(CannotGoBack(refusal))
        if coordination.coordinator.may_go_back:
            self._found = found
            self._propose(found)

    async def _find_present(self, coordination: CoordinatorIo) -> None:
        past, origin = self._past(), self._context.origin
        if past is None:
            if origin is not None:
                coordination.load_from(origin.order(self._context.run_id))
            return
        said = ""
        while True:
            try:
                source = await on_thread(past.present)
            except Unusable as error:
                if str(error) != said:
                    said = str(error)
                    self._context.report(CannotGoBack(said))
                await asyncio.sleep(LOOK_AGAIN_S)
            else:
                coordination.load_from(source.order(self._context.run_id))
                return

    def _past(self) -> SavedPast | None:
        context = self._context
        if context.saving is None:
            return None
        known = context.origin, context.began
        return SavedPast(context.saving, self._chain, context.run_id, context.run, *known)
