"""BulkJoiner: joins bulk connections to links, as the side that dials them or accepts them.

Units:   seconds.
Errors:  BadHandshake for a join that is refused; a link whose connection cannot be made ends.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from p2pswarm.errors import BadHandshake, PathError, SwarmError
from p2pswarm.net.base import Connection, Net
from p2pswarm.transport.admission import check_join, join_error
from p2pswarm.transport.bulk import join
from p2pswarm.transport.bulk.bulk_places import BulkPlaces
from p2pswarm.transport.bulk.channel import BulkKeys
from p2pswarm.transport.bulk.join import BulkJoin
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.link_io import Link


class BulkJoiner:
    """The links that bulk connections may join, by the name of their session."""

    def __init__(self, net: Net, config: TransportConfig, entropy: Callable[[int], bytes]) -> None:
        """`entropy`: returns that many random bytes."""
        self._net = net
        self._config = config
        self._entropy = entropy
        self._places: BulkPlaces[Link] = BulkPlaces(config.bulk_joined_max, lambda link: link.use)
        self._sessions: dict[bytes, Link] = {}

    def add(self, link: Link) -> None:
        """Let connections join a link that came up."""
        self._sessions[join.session_of(link.session.exporter)] = link

    def remove(self, link: Link) -> None:
        """Let none join a link that has ended."""
        self._places.remove(link)
        self._sessions.pop(join.session_of(link.session.exporter), None)

    async def dial(self, link: Link, number: int) -> None:
        """Join one bulk connection to the link, in a few tries: a crowd may displace one."""
        try:
            async with asyncio.timeout(self._config.dial_s + self._config.handshake_s):
                *others, last = join.numbers(number, self._config.bulk_connections_max)
                for each in others:
                    with suppress(PathError):
                        return await self.dial_once(link, each)
                await self.dial_once(link, last)
        except (SwarmError, TimeoutError) as error:
            link.fail(join_error(error, link.peer, number))

    async def dial_once(self, link: Link, number: int) -> None:
        """Join one bulk connection under `number`; PathError or BadHandshake if that fails."""
        exporter = link.session.exporter
        asked = join.BulkJoin.make(exporter, number, self._entropy(join.NONCE_BYTES))
        connection = await self._net.dial(link.remote)
        try:
            await connection.send(asked.raw)
            answer = await connection.receive(join.ANSWER_BYTES)
            nonce = asked.check_answer(exporter, answer)
            keys = asked.keys(exporter, nonce)
            link.add_bulk(connection, BulkKeys(*keys, link.session.keys.suite))
        finally:
            connection.close()

    async def admit(self, connection: Connection, asked: BulkJoin) -> None:
        """Join a connection that the peer dialled; BadHandshake if it may not."""
        link = self._sessions.get(asked.session)
        exporter = check_join(asked, None if link is None else link.session).exporter
        assert link is not None
        nonce = self._entropy(join.NONCE_BYTES)
        answer = asked.answer(exporter, nonce)
        crowd = self._places.make_room(link)
        if not link.claim_number(asked.number):
            raise BadHandshake(
                f"bulk connection {asked.number} has joined before, or exceeds the limit"
            )
        self._places.add(link, link.remote.host)
        for other in crowd:
            other.close("made way for another, all bulk connections are in use")
        await connection.send(answer)
        key_in, key_out = asked.keys(exporter, nonce)
        link.add_bulk(connection, BulkKeys(key_out, key_in, link.session.keys.suite))
