"""PunchAttempt: the connections of one side of an attempt, while they come up.

When what is dialled is decided by `dial_schedule.py`. Each connection on which the peer has greeted
back is given to `take`; the others are closed.

Units:   seconds.
Errors:  none: a dial that fails is tried again until the attempt is over.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Self

from p2pswarm.base.errors import BadHandshake, DialFailed, SwarmError
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.endpoint.preface import PUNCH_PREFACE_BYTES, punch_preface
from p2pswarm.net.os.base import Connection, Listener, Net
from p2pswarm.reach.punch.dial_schedule import DialSchedule, PunchDial

ARRIVALS_MAX = 16  # connections that arrive at once at a port of an attempt


class FirstConnection:
    """The first connection of an attempt; the others are closed. Use it as a context manager."""

    def __init__(self) -> None:
        self._first: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._given = False

    def take(self, connection: Connection) -> None:
        """Take one that has come up."""
        if self._first.done():
            connection.close()
        else:
            self._first.set_result(connection)

    async def wait(self, until_s: float) -> Connection:
        """The first one, whose owner the caller is then; raises DialFailed at `until_s`."""
        try:
            async with asyncio.timeout_at(until_s):
                await asyncio.wait([self._first])
        except TimeoutError as error:
            raise DialFailed("no dial of either side came through") from error
        self._given = True
        return self._first.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        came = self._first.done() and not self._first.cancelled()
        if came and (error is not None or not self._given):
            self._first.result().close()
        self._first.cancel()


class PunchAttempt(Closing):
    """One side of an attempt. Use it as a context manager."""

    def __init__(
        self,
        net: Net,
        schedule: DialSchedule,
        ours: bytes,
        theirs: bytes,
        take: Callable[[Connection], None],
    ) -> None:
        """`ours`, `theirs`: the tokens of both sides' greetings."""
        self._net = net
        self._schedule = schedule
        self._ours = punch_preface(ours)
        self._theirs = punch_preface(theirs)
        self._take = take
        self._tasks = OwnedTasks()
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._arrivals = 0

    async def __aenter__(self) -> Self:
        self._tasks.spawn(self._pump())
        return self

    async def close(self) -> None:
        """End its tasks."""
        await self._tasks.close()

    def plan(self, dials: Iterable[PunchDial], at_s: float) -> None:
        """Have these dialled from `at_s` on."""
        self._schedule.add(dials, at_s)
        self._news.set()

    def end(self, at_s: float) -> None:
        """Dial until then."""
        self._schedule.end(at_s)
        self._news.set()

    async def over(self) -> None:
        """Return when the attempt's time is over."""
        await self._over.wait()

    def beside(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do something while the attempt goes on; it ends with it."""
        return self._tasks.spawn(work)

    def accept_at(self, listener: Listener) -> None:
        """Take what arrives at a port that was opened for this attempt."""
        self._tasks.spawn(self._accept(listener))

    def greeted(self, connection: Connection) -> None:
        """Take a connection that arrived and on which the peer has greeted already."""
        if self._tasks.closing:
            connection.close()
        else:
            self._tasks.spawn(self._answer(connection, greeted=True))

    async def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self._schedule.over_s:
            for dial in self._schedule.due(loop.time()):
                self._tasks.spawn(self._dial(dial))
            self._news.clear()
            try:
                async with asyncio.timeout_at(self._schedule.next_deadline_s()):
                    await self._news.wait()
            except TimeoutError:
                continue
        self._over.set()

    async def _dial(self, dial: PunchDial) -> None:
        try:
            connection = await self._net.dial(dial.to, dial.from_port)
            await self._greet(connection, first=self._ours)
        except SwarmError:
            self._schedule.failed(dial, asyncio.get_running_loop().time())
            self._news.set()

    async def _accept(self, listener: Listener) -> None:
        while True:
            connection = await listener.accept()
            if self._arrivals < ARRIVALS_MAX:
                self._arrivals += 1
                self._tasks.spawn(self._answer(connection, greeted=False), self._answered)
            else:
                connection.close()

    def _answered(self) -> None:
        self._arrivals -= 1

    async def _answer(self, connection: Connection, *, greeted: bool) -> None:
        try:
            await self._greet(connection, first=b"", greeted=greeted)
        except SwarmError:
            return  # the peer dials again

    async def _greet(self, connection: Connection, *, first: bytes, greeted: bool = False) -> None:
        """Greet both ways: who connected at once, who accepted when the peer has."""
        try:
            if first:
                await connection.send(first)
            if not greeted and await connection.receive(PUNCH_PREFACE_BYTES) != self._theirs:
                raise BadHandshake("somebody else answers, who does not greet us")  # noqa: TRY301
            if not first:
                await connection.send(self._ours)
        except BaseException:
            connection.close()
            raise
        self._schedule.stop()
        self._take(connection)
