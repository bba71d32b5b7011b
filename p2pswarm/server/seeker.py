"""A server's search for its trainer, as those see and steer it who look the run up meanwhile.

The lifecycle decides; this waits for its deadlines, and ends a wait for a trainer that is not
worth it any more.

Units:   seconds on the loop's clock.
Errors:  Late when a trainer does not answer in time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from p2pswarm.base.errors import Late
from p2pswarm.base.ids import Contact
from p2pswarm.base.signal import Signal
from p2pswarm.server.leadership import Leadership
from p2pswarm.server.lifecycle import Lifecycle
from p2pswarm.server.session import ServerContext

T = TypeVar("T")


class Seeker:
    """Where one server stands between its sessions."""

    def __init__(
        self,
        context: ServerContext,
        leadership: Leadership,
        changed: Signal,
        moved: Callable[[], None],
    ) -> None:
        """`changed` fires when the lifecycle has moved; `moved` is called to have that done."""
        self.lifecycle: Lifecycle | None = None
        """None before `begin`."""
        self._context = context
        self._leadership = leadership
        self._changed = changed
        self._moved = moved
        self._knock: asyncio.Timeout | None = None
        """The limit of a join that was not answered yet."""

    def begin(self) -> Lifecycle:
        """The server starts to look for its trainer."""
        context = self._context
        trainers = context.trainer, *context.standbys
        now_s = asyncio.get_running_loop().time()
        self.lifecycle = Lifecycle(trainers, context.rejoin_s, now_s)
        return self.lifecycle

    @property
    def trainer(self) -> Contact:
        """The trainer that coordinates, as far as it knows."""
        return self.lifecycle.trainer if self.lifecycle else self._context.trainer

    @property
    def seeks(self) -> bool:
        """Whether it looks for a trainer: it has no session, or its coordinator is silent."""
        return bool(self.lifecycle and (self.lifecycle.seeking or self._leadership.silent))

    @property
    def gave_up(self) -> bool:
        """Whether it ended because it stopped looking for its trainer."""
        end = self.lifecycle.end if self.lifecycle else None
        return end is not None and end.gave_up

    async def seeking(self) -> float:
        """Wait until it looks for a trainer; returns when to look the run up, in seconds."""
        while not self.seeks:
            await self._changed.wait()
        assert self.lifecycle is not None, "it seeks"
        return self.lifecycle.look_again_s(asyncio.get_running_loop().time())

    def found(self, trainers: Sequence[Contact]) -> None:
        """Take trainers of the run that answer just now: it asks them first.

        In a session with a coordinator that is silent, it asks them who leads.
        """
        if self.lifecycle is None:
            return
        if not self.lifecycle.seeking and self._leadership.silent:
            self._leadership.ask(trainers)
            return
        now_s = asyncio.get_running_loop().time()
        if self.lifecycle.found(trainers, now_s):
            self.end_knock()
        self._moved()

    def may_change_run(self) -> bool:
        """Whether no trainer of this run has answered for so long that another run is better."""
        now_s = asyncio.get_running_loop().time()
        return self.lifecycle is not None and self.lifecycle.may_change_run(now_s)

    def give_up(self, reason: str) -> None:
        """Stop looking: the server's `run` returns the reason. A session goes on."""
        if self.lifecycle is not None:
            self.lifecycle.give_up(reason)
            self.end_knock()
            self._moved()

    def end_knock(self) -> None:
        """Wait for the trainer that is asked no longer."""
        if self._knock is not None and not self._knock.expired():
            self._knock.reschedule(asyncio.get_running_loop().time())

    async def knocking(self, limit_s: float | None, answer: Awaitable[T]) -> T:
        """Wait for an answer of the trainer; `end_knock` ends that, as the limit does."""
        try:
            async with asyncio.timeout(limit_s) as knock:
                self._knock = knock
                return await answer
        except TimeoutError:
            if not knock.expired():
                raise
            raise Late("the trainer did not answer in time") from None
        finally:
            self._knock = None

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait for a fact about the lifecycle, and keep its deadlines."""
        lifecycle = self.lifecycle
        assert lifecycle is not None, "nothing moves before `begin`"
        while not fact():
            try:
                async with asyncio.timeout_at(lifecycle.next_deadline_s()):
                    await self._changed.wait()
            except TimeoutError:
                lifecycle.on_deadline(asyncio.get_running_loop().time())
                self._moved()
