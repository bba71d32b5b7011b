"""Asks servers who waits for whom when a step takes too long, and tells people."""

import asyncio
import logging
from collections.abc import Callable

from p2pswarm.base.errors import Late, PathError, SwarmError
from p2pswarm.run.member_view import contact
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.waits import AskWaits, ServerWaits
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.reports.actions import Action
from p2pswarm.trainer.reports.reports import RunBegun, StepDone
from p2pswarm.trainer.stall.stall_watch import StallWatch
from p2pswarm.trainer.step.step import Phase

log = logging.getLogger(__name__)
ASK_S = 1.0  # an event loop answers at once; who does not is a part of the answer


UNSAID = ServerWaits(None, None, "says nothing of itself")


class StallsIo:
    """The watch of one coordinator, and its questions to servers."""

    def __init__(
        self,
        context: TrainerContext,
        coordinator: Coordinator,
        tasks: asyncio.TaskGroup,
        now_s: Callable[[], float],
        planned: Callable[[], None],
    ) -> None:
        """`planned`: called when the watch's deadline has changed."""
        self._context = context
        self._coordinator = coordinator
        self._tasks = tasks
        self._now_s = now_s
        self._planned = planned
        self.watch = StallWatch()
        self._stopped_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        if coordinator.phase is not Phase.GATHERING:  # it goes on with another's run
            self.watch.begin(coordinator.step, now_s())

    def on_step(self, action: Action) -> None:
        """The run begins, or a step is committed."""
        now_s = self._now_s()
        if isinstance(action, StepDone):
            self.watch.begin(action.step + 1, now_s)
            if action.step + 1 >= self._context.run.steps:
                self.watch.close()
        elif isinstance(action, RunBegun):
            self.watch.begin(self._coordinator.step, now_s)
        self._tell()

    def on_time(self, stopped_s: float) -> None:
        """Look whether a step takes too long; `stopped_s`: as long as this process was stopped."""
        now_s, before_s = self._now_s(), self._stopped_s
        if stopped_s > before_s:
            self._stopped_s = stopped_s
            self.watch.on_stop(stopped_s - before_s, now_s)
        self.watch.on_deadline(now_s)
        self._tell()
        if self.watch.asks and (self._asking is None or self._asking.done()):
            self._asking = self._tasks.create_task(self._ask())

    def close(self) -> None:
        """The run is over, or another trainer leads."""
        self.watch.close()
        if self._asking is not None:
            self._asking.cancel()

    def _tell(self) -> None:
        for report in self.watch.drain():
            self._context.report(report)

    async def _ask(self) -> None:
        """Ask those that the step may wait for, all at once, and let the watch judge."""
        view = self._coordinator.stall_views.view(self._now_s())
        members = self._coordinator.members
        records = {
            peer: member.record
            for peer in view.suspects
            if (member := members.of_peer(peer)) is not None
        }
        said = await asyncio.gather(*map(self._answer_of, records.values()))
        answers = dict(zip(records, said, strict=True))
        self.watch.on_answers(view, answers, self._now_s())
        self._tell()
        self._planned()

    async def _answer_of(self, member: MemberRecord) -> ServerWaits | None:
        """A server's own view; None if it gives none."""
        question = AskWaits(self._context.run_id)
        try:
            async with asyncio.timeout(ASK_S):
                answer = await self._context.rpc.call(contact(member), question, ASK_S)
        except (PathError, Late, TimeoutError) as error:
            log.info("%s does not say what it waits for: %s", member.address, error)
            return None
        except SwarmError as error:  # a refusal is an answer, too
            log.info("%s refuses to say what it waits for: %s", member.address, error)
            return UNSAID
        return answer if isinstance(answer, ServerWaits) else UNSAID
