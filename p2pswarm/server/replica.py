"""The weights of a stage on this server: they change one commit after another, under one lock.

`commit_log` decides what a commit or a snapshot means; this file computes and waits. Weights,
version and digest change together: nothing cuts a change short, be it a lost link, a deadline, or
the end of the session.

Units:   seconds.
Errors:  those of `commit_log`; WeightsLost for a commit that cannot be applied;
         BadMessage for a damaged snapshot.
"""

import asyncio
import contextlib

from p2pswarm.allreduce.averaging import Averaging
from p2pswarm.allreduce.base import AveragedGradient, Compute, Sums
from p2pswarm.allreduce.round import RoundId
from p2pswarm.compute.base import Engine, Update
from p2pswarm.errors import BadMessage, NotServing, SwarmError
from p2pswarm.flow.deferred_cancel import to_its_end
from p2pswarm.flow.signal import Signal
from p2pswarm.server.commit_log import (
    CommitDecision,
    CommitLog,
    FirstWeights,
    HeldWeights,
    KeptCommit,
    ReducedGradient,
)
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.state.base import Aside
from p2pswarm.state.version_reader import VersionReader
from p2pswarm.swarm.messages.step import Commit, Reduce

LATE_REDUCTION_S = 30.0  # a commit is answered by then; the trainer waits twice as long


class WeightsLost(NotServing):
    """The stage has moved on, and the weights here cannot: they have to be fetched again."""


class Replica:
    """One stage's weights; it outlives the sessions of the server."""

    def __init__(self, stage: int, engine: Engine, compute: Compute, aside: Aside) -> None:
        """`aside`: a thread of its own for what reads the weights while others compute."""
        self.stage = stage
        self.engine = engine
        self._compute = compute
        self._log = CommitLog()
        self._lock = asyncio.Lock()
        self._changed = Signal()
        self.reader = VersionReader(engine.state, lambda: self.version, aside)
        """Reads the weights between two commits, for newcomers and checkpoints."""

    @property
    def version(self) -> int | None:
        """The version of the weights; None while they are not here."""
        return self._log.version

    @property
    def digest(self) -> bytes:
        """The digest of the weights in memory; empty without any."""
        return self._log.digest

    @property
    def needed(self) -> int:
        """The first version whose snapshot can be used."""
        return self._log.needed

    async def held(self) -> HeldWeights | None:
        """The weights in memory, and what could be applied to them, once no change is under way."""
        async with self._lock:
            return self._log.held

    async def begin(self, since: int, *, keep: bool) -> None:
        """Start a session from version `since`: empty the sum; keep, draw or drop the weights."""
        async with self._lock:
            draw = self._log.begin(since, keep=keep) is FirstWeights.DRAWN
            await to_its_end(self._reset(since, draw=draw, keep=keep))
        self._changed.fire()
        self.reader.moved()

    async def install(self, snapshot: Snapshot) -> bool:
        """Load a snapshot and apply the commits since; False if it is too old by now."""
        async with self._lock:
            following = self._log.follow(snapshot.version)
            if following is None:
                return False
            await to_its_end(self._install(snapshot, following))
        self._changed.fire()
        return True

    async def reduce(self, order: Reduce, averaging: Averaging) -> AveragedGradient:
        """Average the gradient sum of a step with the others of the stage; keep the result.

        Applies its commit, if that has come before; raises WeightsLost where that cannot be done.
        """
        sums = self.engine.weights.reduction()
        round_, reduced = RoundId(order.step, order.generation), None
        self._log.reduction_begun(order)
        try:
            outcome = await averaging.average(order, sums)
            reduced = ReducedGradient(round_, sums, outcome)
        finally:
            self._log.reduction_over(round_, reduced)
            self._changed.fire()
            if (noted := self._log.noted(round_)) is not None:
                self._require_whole(noted, await self._decide(noted, patient=False))
        return outcome

    async def commit(self, order: Commit) -> bytes:
        """Apply a reduction, or keep it until the weights are here.

        Returns the digest of the version that the commit made, empty if it has made none yet.
        Raises WeightsLost where the weights cannot follow.
        """
        late_s = asyncio.get_running_loop().time() + LATE_REDUCTION_S
        while (decision := await self._decide(order)) is CommitDecision.WAIT:
            try:
                async with asyncio.timeout_at(late_s):
                    await self._changed.wait()
            except TimeoutError:
                decision = await self._decide(order, patient=False)
                break
        self._require_whole(order, decision)
        return self._log.made(order.step)

    async def committed_before(self, step: int) -> None:
        """Wait until every reduction of an earlier step has its commit."""
        while self._log.must_commit_before(step):
            await self._changed.wait()

    async def reach(self, version: int) -> None:
        """Wait until the weights are of `version` or later."""
        while self.version is None or self.version < version:
            await self._changed.wait()

    async def snapshot(self, at_least: int) -> Snapshot:
        """Copy the weights once they are of version `at_least` or later."""
        await self.reach(at_least)
        async with self._lock:
            if self.version is None:
                raise NotServing("the weights were given up")
            data = await self._compute(self.engine.weights.snapshot)
            return Snapshot(self.version, self.digest, data)

    def _require_whole(self, order: Commit, decision: CommitDecision) -> None:
        if decision is CommitDecision.LOST:
            raise WeightsLost(f"no reduction of step {order.step}, generation {order.generation}")

    async def _decide(self, order: Commit, *, patient: bool = True) -> CommitDecision:
        """Decide about a commit, and apply it if it is to be applied."""
        async with self._lock:
            decision = self._log.committed(order, patient=patient)
            if decision is CommitDecision.APPLY:
                try:
                    await to_its_end(self._apply(order, self._log.take()))
                except SwarmError as error:
                    raise WeightsLost(f"step {order.step} was not applied: {error}") from error
                finally:
                    self._changed.fire()
        if decision is not CommitDecision.WAIT:
            self._changed.fire()
        return decision

    async def _reset(self, since: int, *, draw: bool, keep: bool) -> None:
        stage, weights = self.engine.stage, self.engine.weights

        def reset() -> bytes:
            stage.drop(None)
            return weights.reset(draw=draw)

        async with contextlib.AsyncExitStack() as blocks:
            if draw:
                await blocks.enter_async_context(self.reader.changing())
            blocks.enter_context(self._log.changing())
            digest = await self._compute(reset)
            if keep:
                self._log.unchanged(digest)
            elif draw:
                self._log.became(since, digest)
                self._log.loaded()

    async def _install(self, snapshot: Snapshot, following: list[KeptCommit]) -> None:
        weights, digest = self.engine.weights, snapshot.digest
        with self._log.changing():
            whole = await self._compute(lambda: weights.install(snapshot.data, digest))
            if whole:
                self._log.became(snapshot.version, digest)
                for kept in following:
                    await self._apply(kept.order, kept.sums)
                self._log.loaded()
                self.reader.moved()
        if not whole:  # nothing has changed
            raise BadMessage(f"the weights of version {snapshot.version} came damaged")

    async def _apply(self, order: Commit, sums: Sums) -> None:
        update = Update(order.step + 1, order.scale, order.learning_rate)

        def step() -> bytes:
            self.engine.stage.drop(None)  # no graph of the old weights outlives them
            return self.engine.weights.apply(sums, update)

        async with self.reader.changing():
            with self._log.changing():
                self._log.applied(order, await self._compute(step))
