"""Calls and streams to servers, whose streams end soon when nothing comes from the other side."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from p2pswarm.base.errors import DialFailed, Late, LinkLost, PathError, SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.net.rpc.base import ForwardingRpc, Rpc, Stream
from p2pswarm.net.wire.message import Message
from p2pswarm.run.messages.membership import StillThere
from p2pswarm.run.peer_health import SILENT_S, PeerHealth, Question


class WatchedRpc(ForwardingRpc):
    """An `Rpc` on top of another, for one session after the other; calls have deadlines anyway.

    An averaging has nobody else to go to. So a stream of its own waits on a broken road for a
    moment, because the road may just have been mended, and the answer that says so be on its way.
    """

    def __init__(self, rpc: Rpc, silent_s: float = SILENT_S, wait_s: float = 0.0) -> None:
        """`wait_s`: how long a stream waits for a broken road before it is refused."""
        super().__init__(rpc)
        self._tasks: asyncio.TaskGroup
        self._loop = asyncio.get_running_loop()
        self.health = PeerHealth(silent_s=silent_s)
        self._wait_s = wait_s
        self._answered = Signal()
        self._contacts: dict[bytes, Contact] = {}
        self._scopes: dict[bytes, dict[asyncio.Timeout, None]] = defaultdict(dict)
        """The streams in use, oldest first; they end when their deadline is moved to now."""
        self._timer: asyncio.TimerHandle | None = None
        self._apart: Callable[[tuple[bytes, ...]], None] = lambda _peers: None
        self._told_apart: tuple[bytes, ...] = ()
        rpc.serve_unary(StillThere, self._still_there)

    def begin(
        self,
        tasks: asyncio.TaskGroup,
        apart: Callable[[tuple[bytes, ...]], None] = lambda _peers: None,
    ) -> None:
        """A session begins; `tasks` must end before its streams' users do.

        `apart` is told those of the watched peers from which nothing comes, when that changes.
        """
        self._tasks = tasks
        self._apart, self._told_apart = apart, ()
        self.health.begun(self._now_s())
        self._pump()

    def watch(self, peers: Iterable[Contact]) -> None:
        """Find out, for as long as the session lasts, whether these are there."""
        known = {peer.peer.raw: peer for peer in peers if peer.peer is not None}
        self._contacts |= known
        self.health.watch(known, self._now_s())
        self._pump()

    @asynccontextmanager
    async def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AsyncIterator[Stream]:
        """As `Rpc.open_stream`."""
        assert to.peer is not None, "servers know whom they dial"
        peer = to.peer.raw
        self._contacts[peer] = to  # it may have moved; a broken road is asked for there
        if self.health.is_broken(peer) and not await self._whole_again(peer):
            raise DialFailed(f"nothing comes from {to.peer.short}")
        self.health.opened(peer, self._now_s())
        self._pump()
        dialling = True
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes[peer][scope] = None
                async with self._rpc.open_stream(to, opening, timeout_s) as stream:
                    dialling = False
                    yield stream
        except TimeoutError as error:
            if isinstance(error, SwarmError) or not scope.expired():
                raise
            raise LinkLost(f"nothing comes from {to.peer.short}") from None
        except DialFailed:
            if dialling:
                self.health.unreachable(peer, self._now_s())
            raise
        finally:
            self._scopes[peer].pop(scope, None)
            self.health.closed(peer)
            self._pump()

    def close(self) -> None:
        """Ask nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    async def _whole_again(self, peer: bytes) -> bool:
        """Wait a moment for a broken road; whether there was an answer."""
        if not self._wait_s:
            return False
        try:
            async with asyncio.timeout(self._wait_s):
                while self.health.is_broken(peer):
                    await self._answered.wait()
        except TimeoutError:
            return False
        return True

    def _now_s(self) -> float:
        return self._loop.time()

    def _pump(self) -> None:
        for peer in self.health.broken():
            for scope in list(self._scopes[peer]):
                if not scope.expired():
                    scope.reschedule(self._now_s())
        for question in self.health.to_ask():
            asking = self._ask(question)
            try:
                self._tasks.create_task(asking)
            except RuntimeError:  # the session ends, and its last streams close
                asking.close()
        if (apart := self.health.apart) != self._told_apart:
            self._told_apart = apart
            self._apart(apart)
        self._set_timer(self.health.next_deadline_s())

    def _set_timer(self, due_s: float | None) -> None:
        if self._timer is not None:
            if self._timer.when() == due_s and not self._timer.cancelled():
                return  # as after most streams
            self._timer.cancel()
        self._timer = None if due_s is None else self._loop.call_at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self.health.on_deadline(self._now_s())
        self._pump()

    def _still_there(self, peer: PeerId, question: StillThere) -> StillThere:
        """Answer a peer that asks; of several on one `Rpc` the last that was made does."""
        self.health.asked(peer.raw, self._now_s())
        return question

    async def _ask(self, question: Question) -> None:
        to = self._contacts[question.peer]
        there = await is_there(self._rpc, to, question.within_s)
        self.health.answered(question, self._now_s(), there=there)
        if there:
            self._answered.fire()
        self._pump()


async def is_there(rpc: Rpc, peer: Contact, within_s: float) -> bool:
    """Return whether a server's event loop answers in time; a refusal is an answer, too."""
    try:
        await rpc.call(peer, StillThere(), within_s)
    except (PathError, Late):
        return False
    except SwarmError:
        return True
    return True
