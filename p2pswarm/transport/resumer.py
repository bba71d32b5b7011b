"""Resumer: finds another path for a link that needs one, and takes over links for peers.

Decisions: `path_search.py`, `resumption.py`.

Units:   seconds.
Errors:  PathError and BadHandshake from `move`; BadHandshake for a takeover that is refused.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from p2pswarm.errors import BadHandshake, DialFailed, LinkLost, NobodyThere, SwarmError, UnknownLink
from p2pswarm.net.base import Connection
from p2pswarm.net.happy_eyeballs import first_connected
from p2pswarm.transport import resumption
from p2pswarm.transport.bulk.join import NONCE_BYTES
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.control_path import ControlPath, Takeover
from p2pswarm.transport.link_io import Link
from p2pswarm.transport.owned_tasks import OwnedTasks
from p2pswarm.transport.path import Path, Paths, Way
from p2pswarm.transport.path_search import PathSearch
from p2pswarm.transport.resumption import Resume

_log = logging.getLogger(__name__)


class _Answered:
    """A connection on which the peer has said that it would go on."""

    def __init__(self, connection: Connection, way: Way, asked: Resume, answer: bytes) -> None:
        self.connection = connection
        self.way = way
        self.asked = asked
        self.answer = answer

    def close(self) -> None:
        """Another one was faster."""
        self.connection.close()


class _WayFailed(OSError):
    """One way led nowhere: an OSError, because `first_connected` goes on after those."""


class Resumer:
    """The searches under way, one a link."""

    def __init__(
        self,
        sessions: dict[bytes, Link],
        config: TransportConfig,
        entropy: Callable[[int], bytes],
        tasks: OwnedTasks,
        paths: Paths,
    ) -> None:
        """`sessions`: every link by its public name. `entropy`: returns that many random bytes."""
        self.paths = paths
        """What knows the ways to peers."""
        self._sessions = sessions
        self._config = config
        self._entropy = entropy
        self._tasks = tasks
        self._searching: dict[Link, None] = {}

    def want(self, link: Link) -> None:
        """Find another path for a link, unless that is being done."""
        if link not in self._searching and not self._tasks.closing:
            self._searching[link] = None
            self._tasks.spawn(self._search(link), partial(self._end_search, link))

    async def move(self, link: Link, way: Way) -> None:
        """Let a link go on by another way; the path before carries it until then."""
        try:
            async with asyncio.timeout(self._config.dial_s + self._config.handshake_s):
                await self._take(link, await self._ask(link, way))
        except TimeoutError as error:
            raise DialFailed(f"the way to {link.peer.short} gives no answer") from error

    async def admit(self, connection: Connection, asked: Resume) -> None:
        """Let a connection that the peer made take over its link; BadHandshake if it may not."""
        link = self._sessions.get(asked.session)
        if link is None:
            await connection.send(resumption.UNKNOWN)
            raise BadHandshake(f"it goes on with session {asked.session.hex()}, which is unknown")
        exporter = link.session.exporter
        asked.check(exporter, link.path_numbers)
        announced = link.records.expected
        nonce = self._entropy(NONCE_BYTES)
        await connection.send(asked.answer(exporter, nonce, announced))
        raw = await connection.receive(resumption.CONFIRM_BYTES)
        wanted = asked.read_confirm(exporter, nonce, raw)
        path = Path(None, connection.remote, None)
        takeover = Takeover(asked.number, announced, wanted)
        await connection.become_control(ControlPath(link, path, takeover))

    def _end_search(self, link: Link) -> None:
        del self._searching[link]
        if link.path is None and not link.over:  # the path that was found is gone already
            self.want(link)

    async def _search(self, link: Link) -> None:
        """Try all ways, again and again, until the link has a path or ends."""
        loop = asyncio.get_running_loop()
        search = PathSearch(
            loop.time(), self._config.path_wait_s, peer_may_come=not link.session.dialled
        )
        link.path_news.clear()
        while not (link.over or (link.path_news.is_set() and link.path is not None)):
            link.path_news.clear()
            ways = self.paths.ways(link.contact)
            refused = await self._round(link, ways)
            at_s = search.next_round_s(len(ways), refused, loop.time())
            if at_s is None:
                link.nobody_there("its path is gone, and nobody is at the other end")
                break
            with suppress(TimeoutError):  # then the next round is due
                async with asyncio.timeout_at(at_s):
                    await link.path_news.wait()

    async def _round(self, link: Link, ways: Sequence[Way]) -> int:
        """Try every way once; returns how many of them were refused."""
        errors: list[SwarmError] = []

        async def ask(way: Way) -> _Answered:
            try:
                return await self._ask(link, way)
            except SwarmError as error:
                errors.append(error)
                raise _WayFailed(str(error)) from error

        try:
            async with asyncio.timeout(self._config.dial_s):
                answered = await first_connected(ways, ask)
                await self._take(link, answered)
        except (TimeoutError, OSError, SwarmError) as error:
            _log.debug("no path to %s: %s", link.peer.short, error)
        return sum(isinstance(error, NobodyThere | UnknownLink) for error in errors)

    async def _ask(self, link: Link, way: Way) -> _Answered:
        """Ask the peer by one way to go on there."""
        number = link.path_numbers.take()
        asked = Resume.make(link.session.exporter, number, self._entropy(NONCE_BYTES))
        connection = await way.connect()
        try:
            await connection.send(asked.raw)
            answer = await connection.receive(resumption.ANSWER_BYTES)
            asked.read_answer(link.session.exporter, answer)
        except BaseException:
            connection.close()
            raise
        return _Answered(connection, way, asked, answer)

    async def _take(self, link: Link, answered: _Answered) -> None:
        """Go on over a connection on which the peer has answered."""
        connection, asked = answered.connection, answered.asked
        exporter = link.session.exporter
        nonce, wanted = asked.read_answer(exporter, answered.answer)
        announced = link.records.expected
        path = Path(answered.way.kind, connection.remote, answered.way)
        try:
            await connection.send(asked.confirm(exporter, nonce, announced))
            takeover = Takeover(asked.number, announced, wanted)
            await connection.become_control(ControlPath(link, path, takeover))
        except BaseException:
            connection.close()
            raise
        if link.path is not path:
            raise LinkLost(f"another path to {link.peer.short} came up first")
