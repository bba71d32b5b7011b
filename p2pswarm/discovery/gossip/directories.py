"""Directories: those of all runs that a node takes part in, and the calls of others about them.

Units:   seconds.
Errors:  NotServing, told to a peer that asks about another run; ValueError for too many runs.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from p2pswarm.base.errors import NotServing
from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.gossip.directory import everybody
from p2pswarm.discovery.gossip.gossip import Gossip, GossipMember
from p2pswarm.discovery.gossip.messages import Compare, Compared, Deliver, Delivered
from p2pswarm.discovery.gossip.own_record import OwnRecord
from p2pswarm.discovery.gossip.partners import Partners
from p2pswarm.discovery.gossip.record import RecordReader
from p2pswarm.discovery.gossip.run_directory import RunDirectory
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.os.addresses import Scope
from p2pswarm.net.rpc.base import Rpc

RUNS_MAX = 8  # a node serves one run and may watch others


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the directories of a node are given once, by the code that composes it."""

    rpc: Rpc
    identity: Identity
    card: Callable[[], Card]
    """Our own card as it is now."""
    rng: random.Random
    wall_s: Callable[[], float]
    """Seconds since 1970."""
    least_scope: Scope = Scope.PRIVATE
    """Addresses of a smaller scope are not believed."""
    reader: RecordReader | None = None
    """Reads records; None for one of its own."""


@dataclass(slots=True)
class _OpenDirectory:
    """A directory that is kept fresh, and the number of its users."""

    directory: RunDirectory
    upkeep: asyncio.Task[None]
    users: int = 0


class Directories:
    """The directories of one node, by run. Use it as a context manager: it owns its tasks."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._reader = around.reader or RecordReader()
        self._open: dict[bytes, _OpenDirectory] = {}
        self._tasks = asyncio.TaskGroup()
        around.rpc.serve_unary(Compare, self._compare)
        around.rpc.serve_unary(Deliver, self._deliver)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._open.values():
            each.upkeep.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    @contextlib.asynccontextmanager
    async def open(
        self, run: bytes, admitted: Callable[[PeerId], bool] = everybody
    ) -> AsyncIterator[RunDirectory]:
        """The directory of a run, while this block lasts; several roles of a node share it.

        `admitted`: whether a peer may be in the run; the first user's counts.
        """
        if run not in self._open:
            if len(self._open) >= RUNS_MAX:
                raise ValueError(f"a node takes part in {RUNS_MAX} runs at most")
            directory = self._made(run, admitted)
            upkeep = self._tasks.create_task(directory.maintain())
            self._open[run] = _OpenDirectory(directory, upkeep)
        used = self._open[run]
        used.users += 1
        try:
            yield used.directory
        finally:
            used.users -= 1
            if not used.users:
                del self._open[run]
                used.upkeep.cancel()
                await asyncio.wait((used.upkeep,))

    def _made(self, run: bytes, admitted: Callable[[PeerId], bool]) -> RunDirectory:
        around, chance = self._around, random.Random(self._around.rng.random())
        own = around.rpc.contact
        return RunDirectory(
            around.rpc,
            Gossip(
                GossipMember(run, own, admitted),
                OwnRecord(around.identity, run, chance),
                Partners(own, around.least_scope, chance),
                self._reader,
                chance,
            ),
            around.card,
            around.wall_s,
        )

    def _of(self, run: bytes) -> RunDirectory:
        if run not in self._open:
            raise NotServing("not in this run now")
        return self._open[run].directory

    def _compare(self, peer: PeerId, question: Compare) -> Compared:
        return self._of(question.run).compare(peer, question)

    def _deliver(self, peer: PeerId, told: Deliver) -> Delivered:
        return self._of(told.run).deliver(peer, told)
