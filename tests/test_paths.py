"""The path of an input is short: how many files it enters, printed and held.

`python -m pytest tests/test_paths.py -q -s` prints a line for each.
"""

import asyncio

from entered import files_entered, tracing
from net.link.harness import End, listening
from net.rpc.harness import Ask
from worlds.dht import DhtWorld, DhtWorldConfig

from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.sim.loop import run

WARM_REQUEST_FILES_MAX = 17
DHT_GET_FILES_MAX = 16


def show(capsys, name: str, entered: list[str]) -> None:
    """Print the number, past pytest's capture, as scripts read it."""
    with capsys.disabled():
        print(f"\n{name}: {len(entered)} files")


def test_a_function_of_another_file_is_seen():
    from p2pswarm.base.ids import PeerId  # noqa: PLC0415 - the subject of the test

    assert files_entered(lambda: PeerId(b"\1" * 32).__str__()) == ["base/ids.py"]


def test_a_request_on_a_warm_link(capsys):
    """A call whose handler is a task: both sides, from the caller to its reply.

    The first call brings the link up, the second one meets the answer to the other side's ping. A
    timer that comes due meanwhile is no part of a request, so the shortest of three counts.
    """

    async def echo(_peer, ask):
        return ask

    with asyncio.Runner() as runner:
        caller, server = runner.run(ends())
        rpc = LinkRpc(caller)
        LinkRpc(server).serve_unary(Ask, echo)
        to = server.contact
        for number in range(2):
            assert runner.run(rpc.call(to, Ask(number), 10.0)) == Ask(number)

        entered = min(
            (files_entered(lambda: runner.run(rpc.call(to, Ask(2), 10.0))) for _ in range(3)),
            key=len,
        )

        for end in (caller, server):
            runner.run(end.close())
    show(capsys, "warm request", entered)
    assert len(entered) <= WARM_REQUEST_FILES_MAX


async def ends() -> tuple[End, End]:
    """Two endpoints on loopback; the second one listens."""
    return End(), await listening(End())


def test_a_get_from_the_dht(capsys):
    """One value among 100 nodes, got by the node that is farthest from its key, which asks first.

    Counted is the whole get: at the node that asks, and at all that are asked. The simulated
    network itself (`sim/`) is left out, since it stands for sockets and kernels.
    """
    entered = dht_get(nodes=100)

    show(capsys, "dht get", entered)
    assert len(entered) <= DHT_GET_FILES_MAX, entered


def dht_get(nodes: int) -> list[str]:
    key = bytes(32)

    async def play() -> list[str]:
        world = DhtWorld(DhtWorldConfig(nodes=nodes, stale=0.0))
        await world.nodes[0].put(key, b"", b"value", 3600.0, republish=False)
        await asyncio.sleep(10)  # replicas that nobody waits for
        asker = max(world.nodes, key=lambda node: node.contact.peer.distance(key))
        with tracing() as entered:
            found = await asker.get(key)
        await world.close()
        assert key not in asker.store
        assert found[b""].value == b"value"
        return [path for path in entered if not path.startswith("sim/")]

    return run(play(), seed=1)
