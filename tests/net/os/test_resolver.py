"""Names: slow ones hold nobody up but those who ask for names, and no more threads than stated."""

import asyncio
import socket
import threading

import pytest
from net.os.harness import PATIENCE_S

from p2pswarm.base.errors import DialFailed
from p2pswarm.base.ids import Address
from p2pswarm.net.os.resolver import ADDRESSES_MAX, THREADS_MAX, Resolver, in_turns
from p2pswarm.net.os.sockets import SocketNet

V4, V6 = socket.AF_INET, socket.AF_INET6


class Names:
    """Stands for the system's resolver: each look-up lasts until `release`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = [(V4, 1, 6, "", ("127.0.0.1", 9))]
        self.release = threading.Event()

    def getaddrinfo(self, host: str, *_: object, **__: object) -> list[tuple]:
        self.asked.append(host)
        self.release.wait(PATIENCE_S)
        if host.startswith("no-"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.answers


@pytest.fixture
def names(monkeypatch):
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.release.set()


async def test_slow_names_leave_the_shared_threads_and_numeric_addresses_alone(names: Names):
    net = SocketNet()
    dials = [asyncio.create_task(net.dial(Address(f"slow-{n}", 4000))) for n in range(40)]
    await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE_S / 2):
        assert await asyncio.to_thread(lambda: "written") == "written"
        listener = await net.listen(Address("127.0.0.1", 0))
        ours, theirs = await asyncio.gather(net.dial(listener.address), listener.accept())

    assert len(names.asked) <= THREADS_MAX
    for each in (ours, theirs, listener):
        each.close()
    for dial in dials:
        dial.cancel()
    await asyncio.gather(*dials, return_exceptions=True)


async def test_callers_of_one_name_share_a_look_up_and_may_leave_alone(names: Names):
    resolver = Resolver()
    callers = [asyncio.create_task(resolver.resolve(Address("name", 9))) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    names.release.set()

    assert await callers[1] == await callers[2] == [(V4, ("127.0.0.1", 9))]
    assert names.asked == ["name"]
    assert callers[0].cancelled()
    await resolver.resolve(Address("name", 9))
    assert names.asked == ["name", "name"], "an answer is not kept"


async def test_a_name_that_is_none_is_a_failed_dial(names: Names):
    names.release.set()

    with pytest.raises(DialFailed, match="no-such-host:4000: Name or service not known"):
        await SocketNet().dial(Address("no-such-host", 4000))


async def test_a_name_with_many_addresses_has_a_few_tried(names: Names):
    names.release.set()
    names.answers = [(V4, 1, 6, "", (f"192.0.2.{n}", 9)) for n in range(50)]

    assert len(await Resolver().resolve(Address("many", 9))) == ADDRESSES_MAX


def test_families_take_turns_in_the_systems_order():
    found = [(V6, ("a",)), (V6, ("b",)), (V6, ("c",)), (V4, ("d",))]

    assert [name[0] for _, name in in_turns(found)] == ["a", "d", "b", "c"]
    assert in_turns([]) == []


def test_a_loop_that_ends_before_the_system_answers_is_told_nothing(names: Names):
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Resolver().resolve(Address("name", 9))

    asyncio.run(give_up())
    names.release.set()
    for thread in threading.enumerate():
        if thread.name == "resolver":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
