"""Handshaker: does the handshake of a raw connection, as the side that dialled or accepted.

Errors:  BadHandshake for whatever the peer sends; LinkLost if the connection ends.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.cards.card import Card
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake, Hello, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.crypto.suite import KEY_BYTES
from p2pswarm.net.endpoint.raw_handshake import AcceptedHandshake, DialledHandshake
from p2pswarm.net.link.session import INCARNATION_BYTES, Introduction
from p2pswarm.net.os.base import Connection
from p2pswarm.net.wire.message import encode

Compute = Callable[[Callable[[], None]], Coroutine[None, None, None]]
"""Runs what costs much time."""


class Handshaker:
    """Our identity in handshakes.

    It knows who we are. What the bytes mean is decided by `raw_handshake.py`.
    """

    def __init__(
        self,
        identity: Identity,
        config: TransportConfig,
        entropy: Callable[[int], bytes],
        listen_port: Callable[[], int],
        card: Callable[[], Card],
    ) -> None:
        """`listen_port`: the port at which peers can dial us, 0 if there is none."""
        self._entropy = entropy
        self._card = card
        self._listen_port = listen_port
        self._hello = Hello(config.suite, config.network_id)
        self._static = StaticKey(identity, entropy(KEY_BYTES))
        self.incarnation = entropy(INCARNATION_BYTES)
        """The random bytes of our process, from which peers know that it was not started again."""

    async def dialled(
        self,
        connection: Connection,
        expect: PeerId | None,
        before_proof: Callable[[], Awaitable[None]],
    ) -> Handshake:
        """Do the handshake on a connection that we dialled; `expect`: the peer, if we know it.

        Through a relay we always know it: the relay was asked for this peer. `before_proof`:
        awaited when the peer has proven who it is, before we do.
        """
        if expect is None and connection.remote.circuit:
            expect = PeerId(connection.remote.circuit)
        handshake = Handshake(
            Role.INITIATOR,
            self._hello,
            self._static,
            self._entropy(KEY_BYTES),
            self._introduction(connection.remote),
            expect=expect,
        )
        side = DialledHandshake(handshake, self._hello.network)
        await _exchange_messages(connection, side, before_last=before_proof)
        return handshake

    async def accepted(
        self, connection: Connection, before_answer: Callable[[], None], compute: Compute
    ) -> AcceptedHandshake:
        """Read what an accepted connection is for; `before_answer` is called before each answer."""
        accepted = AcceptedHandshake(
            self._hello,
            self._static,
            self._entropy(KEY_BYTES),
            self._introduction(connection.remote),
        )
        await _exchange_messages(connection, accepted, before_answer, compute)
        if accepted.refusal is not None:
            raise accepted.refusal
        return accepted

    def _introduction(self, remote: Address) -> bytes:
        return encode(
            Introduction(self.incarnation, self._listen_port(), remote.host, self._card().data)
        )


async def _exchange_messages(
    connection: Connection,
    side: DialledHandshake | AcceptedHandshake,
    before_answer: Callable[[], None] | None = None,
    compute: Compute | None = None,
    before_last: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send and receive until the handshake needs no more bytes.

    `before_answer` is called before each message of ours, `before_last` awaited before the last.
    """
    while True:
        if ready := side.data_to_send():
            if before_answer is not None:
                before_answer()
            if before_last is not None and not side.wanted_bytes:
                await before_last()
            await connection.send(ready)
        if not side.wanted_bytes:
            return
        data = await connection.receive(side.wanted_bytes)
        if compute is not None and side.computes:
            await compute(partial(side.receive, data))
        else:
            side.receive(data)
