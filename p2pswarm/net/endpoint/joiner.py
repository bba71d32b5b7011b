"""BulkJoiner: joins bulk connections to links, as the side that dials them or accepts them.

Errors:  BadHandshake for a join that is refused; a link for which none can be made ends.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from p2pswarm.base.errors import BadHandshake, DialFailed, PathError, SwarmError
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.endpoint.dial_checks import check_join, join_error
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.endpoint.link_request import (
    JOIN,
    JOIN_ANSWER_BYTES,
    JOIN_TRIES,
    NONCE_BYTES,
    BulkJoin,
)
from p2pswarm.net.guard.connection_limits import BulkSlots
from p2pswarm.net.link.channel_demand import goes_elsewhere
from p2pswarm.net.link.path import Path
from p2pswarm.net.os.base import Connection


class BulkJoiner:
    """The bulk connections that join links, ours and those of peers."""

    def __init__(
        self,
        sessions: dict[bytes, Link],
        config: TransportConfig,
        entropy: Callable[[int], bytes],
    ) -> None:
        """`sessions`: every link by its public name. `entropy`: returns that many random bytes."""
        self._sessions = sessions
        self._config = config
        self._entropy = entropy
        self._slots: BulkSlots[Link] = BulkSlots(config.bulk_joined_max, lambda link: link.use)
        self.leave, self.remove = self._slots.leave, self._slots.remove

    async def dial(self, link: Link) -> None:
        """Join one bulk connection to the link, in a few tries: a crowd may displace one."""
        path = link.path
        if path is None:  # those of the next path are asked for when it is up
            return None
        try:
            async with asyncio.timeout(self._config.dial_s + self._config.handshake_s):
                for _ in range(JOIN_TRIES - 1):
                    with suppress(PathError):
                        return await self.dial_once(link, path)
                await self.dial_once(link, path)
        except (SwarmError, TimeoutError) as error:
            link.on_join_failure(path, join_error(error, link.peer))

    async def dial_once(self, link: Link, path: Path) -> None:
        """Join one bulk connection by the link's path; PathError or BadHandshake if that fails."""
        if path.candidate is None:
            raise BadHandshake("the peer dialled this path, and dials its bulk connections")
        exporter, number = link.session.exporter, link.bulk.take_number()
        asked = BulkJoin.make(JOIN, exporter, number, self._entropy(NONCE_BYTES))
        try:
            connection = await path.candidate.connect()
        except BaseException:
            link.bulk.withdraw(number)
            raise
        try:
            if goes_elsewhere(path, connection.remote, link.bulk.live):
                raise DialFailed(f"no other connection to {link.peer.short} can be punched")
            await connection.send(asked.raw)
            answer = await connection.receive(JOIN_ANSWER_BYTES)
            nonce = asked.check_answer(exporter, answer)
            keys = asked.keys(exporter, nonce)
            if link.path is path:  # else it is one of a path that was left
                link.add_bulk(connection, Keys(*keys, link.session.keys.suite), number)
        finally:
            link.bulk.withdraw(number)
            connection.close()

    async def admit(self, connection: Connection, asked: BulkJoin) -> None:
        """Join a connection that the peer dialled; BadHandshake if it may not."""
        link = self._sessions.get(asked.session)
        check_join(asked, None if link is None else link.path)
        assert link is not None
        exporter = link.session.exporter
        nonce = self._entropy(NONCE_BYTES)
        answer = asked.answer(exporter, nonce)
        crowd = self._slots.make_room(link)
        if not link.bulk.claim(asked.number):
            raise BadHandshake(
                f"bulk connection {asked.number} has joined before, or exceeds the limit"
            )
        self._slots.add(link, asked.number, link.remote.host)
        for other in crowd:
            other.close("made way for another, all bulk connections are in use")
        joined = False
        try:
            await connection.send(answer)
            key_in, key_out = asked.keys(exporter, nonce)
            keys = Keys(key_out, key_in, link.session.keys.suite)
            link.add_bulk(connection, keys, asked.number)
            joined = True
        finally:
            if not joined:
                link.bulk.unclaim()
                self._slots.leave(link, asked.number)
