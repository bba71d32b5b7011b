"""The weights of a stage on this server, from one version to the next.

A newcomer keeps the reductions and commits of the steps that pass while its snapshot is on the way,
and applies them when that is here; so it holds, bit for bit, what the others hold. Changes happen
one after another, under one lock.

Errors:  NotServing for a commit of a reduction that is not here.
"""

import asyncio
from dataclasses import dataclass

from p2pswarm.allreduce.base import AveragedGradient, Compute, Sums
from p2pswarm.compute.base import Engine, Update
from p2pswarm.errors import BadMessage, NotServing
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.step import Commit

BACKLOG_MAX = 64  # reductions kept while weights come, each of the stage's size


@dataclass(frozen=True, slots=True)
class ReducedGradient:
    """A gradient that a commit may apply."""

    step: int
    generation: int
    sums: Sums
    outcome: AveragedGradient


class Replica:
    """One stage's weights; outlives the lives of the server."""

    def __init__(self, stage: int, engine: Engine, compute: Compute) -> None:
        self.stage = stage
        self.engine = engine
        self.version: int | None = None
        self.digest = b""
        self._compute = compute
        self._reduced: ReducedGradient | None = None
        self._backlog: list[tuple[Commit, Sums]] = []
        self._lock = asyncio.Lock()
        self._moved = asyncio.Event()

    async def begin(self, since: int, *, keep: bool) -> None:
        """A new session from version `since`: void the sum, and keep, make or lose the weights."""
        draw = since == 0 and not keep
        async with self._lock:
            if keep and self.version != since:
                raise NotServing(f"the weights are of version {self.version}, not {since}")
            self._reduced, self._backlog = None, []
            if not keep:
                self.version = None
            stage, weights = self.engine.stage, self.engine.weights

            def reset() -> bytes:
                stage.drop(None)
                return weights.reset(draw=draw)

            self.digest = await self._compute(reset)
            if draw:
                self.version = 0

    async def install(self, snapshot: Snapshot) -> None:
        """Take a snapshot over, and catch up with the commits since."""
        async with self._lock:
            digest = await self._compute(lambda: self.engine.weights.install(snapshot.data))
            if digest != snapshot.digest:
                raise BadMessage(f"the weights of version {snapshot.version} came damaged")
            version = snapshot.version
            while self._backlog:
                order, sums = self._backlog[0]
                if order.step == version:
                    digest = await self._apply(order, sums)
                    version += 1
                elif order.step > version:
                    raise BadMessage(f"weights of version {version}, commits from {order.step} on")
                self._backlog.pop(0)
            self._become(version, digest)

    def keep_reduction(self, reduction: ReducedGradient) -> None:
        """A reduction has succeeded; the last one is what a commit may mean."""
        self._reduced = reduction

    async def commit(self, order: Commit) -> bool:
        """Apply a reduction, or keep it until the weights are here; True if the weights moved."""
        async with self._lock:
            reduced = self._reduced
            mark = (order.step, order.generation)
            if reduced is None or (reduced.step, reduced.generation) != mark:
                raise NotServing(f"no reduction of step {mark[0]}, generation {mark[1]}")
            if self.version is None:
                if len(self._backlog) >= BACKLOG_MAX:
                    raise NotServing(f"{BACKLOG_MAX} steps passed while the weights were coming")
                self._backlog.append((order, reduced.sums))
                return False
            if self.version != order.step:
                raise NotServing(f"a commit of step {order.step} to version {self.version}")
            digest = await self._apply(order, reduced.sums)
            self._reduced = None
            self._become(order.step + 1, digest)
            return True

    async def reach(self, version: int) -> None:
        """Wait until the weights are of `version` or later."""
        while self.version is None or self.version < version:
            await self._moved.wait()

    async def snapshot(self, at_least: int) -> Snapshot:
        """Copy the weights once they are of a version."""
        await self.reach(at_least)
        async with self._lock:
            if self.version is None:
                raise NotServing("the weights were given up")
            data = await self._compute(self.engine.weights.snapshot)
            return Snapshot(self.version, self.digest, data)

    async def _apply(self, order: Commit, sums: Sums) -> bytes:
        update = Update(order.step + 1, order.scale, order.learning_rate)

        def step() -> bytes:
            self.engine.stage.drop(None)  # no graph of the old weights outlives them
            return self.engine.weights.apply(sums, update)

        return await self._compute(step)

    def _become(self, version: int, digest: bytes) -> None:
        self.version, self.digest = version, digest
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
