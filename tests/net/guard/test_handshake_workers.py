"""The gate: computations run in turn, in virtual time, and a crowd takes its share of it alone."""

import asyncio
from collections import deque
from contextlib import AsyncExitStack, suppress
from itertools import count

import pytest
from net.link.harness import LOOPBACK, PATIENCE_S, End, raw_connection

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake, Hello, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.guard.fair_queue import BURST_S, COST_MAX_S, SHARE, HandshakeQueue
from p2pswarm.net.guard.handshake_workers import HandshakeGate
from p2pswarm.sim.loop import SimLoop

COST_S = 0.00025
FIRST_MESSAGE_BYTES = 55
WAITING = 8
AT_ONCE = round(BURST_S / COST_MAX_S) + 1  # of computations that count as the longest


def test_a_dialler_gets_through_while_a_crowd_floods():
    """4,000 first messages a second from one network, 10 s long: its places are 256."""

    async def play() -> tuple[list[float], int]:
        loop = asyncio.get_running_loop()
        gate = HandshakeGate(clock=count(0.0, COST_S).__next__)  # each takes COST_S
        computed: list[int] = []
        waits_s: list[float] = []
        crowd: list[asyncio.Task[None]] = []
        for tick in range(2000):
            await asyncio.sleep(0.005)
            for n in range(20):
                ticket = tick * 20 + n
                work = gate.run(ticket, f"192.0.{n}.1", lambda n=ticket: computed.append(n))
                crowd.append(asyncio.create_task(work))
            for task in crowd[:-256]:
                task.cancel()
            crowd = crowd[-256:]
            if tick % 20 == 0:
                begun_s = loop.time()
                for _ in range(2):  # the greeting, the proof
                    await gate.run(-1, "198.51.100.9", lambda: None)
                waits_s.append(loop.time() - begun_s)
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        gate.close()
        return waits_s, len(computed)

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        waits_s, computed = runner.run(play())

    assert max(waits_s) <= 0.02
    assert computed <= 11 * SHARE / COST_S


async def test_what_a_computation_raises_is_raised_to_who_asked():
    gate = HandshakeGate()

    def fail() -> None:
        raise BadHandshake("garbage")

    with pytest.raises(BadHandshake, match="garbage"):
        await gate.run(1, "host", fail)
    await gate.run(1, "host", lambda: None)


async def test_who_was_displaced_is_not_computed():
    turns = HandshakeQueue(share=1e-6)
    gate = HandshakeGate(turns, clock=count().__next__)
    ran: list[int] = []
    for ticket in range(AT_ONCE):
        await gate.run(ticket, "host", lambda: None)
    late = asyncio.create_task(gate.run(9, "host", lambda: ran.append(9)))
    await asyncio.sleep(0)

    late.cancel()
    gate._on_turn()
    with suppress(asyncio.CancelledError):
        await late

    assert ran == []
    assert turns.next_deadline_s() is None
    gate.close()


async def test_first_messages_over_the_share_wait_or_are_dropped_and_are_never_computed():
    """The share is used up by the first few: of 40, 8 wait, and the others are hung up on."""
    config = TransportConfig()
    static = StaticKey(Identity.generate(), bytes(32))
    hello = Hello(config.suite, config.network_id)
    handshake = Handshake(Role.INITIATOR, hello, static, b"e" * 32, b"")
    first_message = b"".join(handshake.data_to_send())
    assert len(first_message) == FIRST_MESSAGE_BYTES
    async with (
        End(silent_max=WAITING, handshake_s=PATIENCE_S) as acceptor,
        AsyncExitStack() as ends,
    ):
        acceptor.acceptor._gate = HandshakeGate(HandshakeQueue(share=1e-6), clock=count().__next__)
        await acceptor.listen(LOOPBACK)
        crowd: deque[asyncio.StreamReader] = deque()
        answers = []
        for number in range(40):
            reader, writer = await raw_connection(acceptor)
            ends.callback(writer.close)
            writer.write(first_message)
            crowd.append(reader)
            if number < AT_ONCE or len(crowd) > WAITING:
                with suppress(ConnectionResetError):
                    async with asyncio.timeout(PATIENCE_S):
                        answers.append(await crowd.popleft().read(1))

    assert all(answers[:AT_ONCE])
    assert set(answers[AT_ONCE:]) <= {b""}
