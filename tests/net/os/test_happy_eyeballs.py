"""Tests of `net/os/happy_eyeballs.py`."""

import asyncio
import socket
import threading

import pytest
from net.os.harness import PATIENCE_S

from p2pswarm.base.errors import DialFailed
from p2pswarm.base.ids import Address
from p2pswarm.net.os.attempt_stagger import ATTEMPT_DELAY_S
from p2pswarm.net.os.happy_eyeballs import (
    ADDRESSES_MAX,
    THREADS_MAX,
    Resolver,
    first_connected,
    in_turns,
)
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.sim.loop import run

SEED = 1
DEAD, REFUSES, BUG = "dead", "refuses", "bug"


class Place:
    """Connects to addresses that answer after so many seconds, or as their name says."""

    def __init__(self) -> None:
        self.tried: list[tuple[object, float]] = []
        self.open: list[Connection] = []

    async def connect(self, address: object) -> "Connection":
        self.tried.append((address, asyncio.get_running_loop().time()))
        if address == DEAD:
            await asyncio.Event().wait()
        if address == REFUSES:
            raise ConnectionRefusedError(f"refused {len(self.tried)}")
        if address == BUG:
            raise ZeroDivisionError
        await asyncio.sleep(float(address))
        return Connection(self, address)


class Connection:
    def __init__(self, place: Place, address: object) -> None:
        self.address = address
        self.place = place
        place.open.append(self)

    def close(self) -> None:
        self.place.open.remove(self)


def dial(*addresses: object, within_s: float = 100.0) -> tuple[Place, Connection, float]:
    """The place, the connection that won, and when."""
    place = Place()

    async def main() -> tuple[Place, Connection, float]:
        async with asyncio.timeout(within_s):
            won = await first_connected(addresses, place.connect)
        return place, won, asyncio.get_running_loop().time()

    return run(main(), SEED)


def test_a_dead_address_costs_a_quarter_of_a_second():
    _, won, took_s = dial(DEAD, 0.1)

    assert won.address == 0.1
    assert took_s == pytest.approx(ATTEMPT_DELAY_S + 0.1)


def test_an_address_that_refuses_costs_nothing():
    _, _, took_s = dial(REFUSES, REFUSES, 0.1)

    assert took_s == pytest.approx(0.1)


def test_a_slow_address_may_still_win_and_the_others_are_closed():
    place, won, took_s = dial(0.3, 0.1, 5.0)

    assert won.address == 0.3
    assert took_s == pytest.approx(0.3)
    assert [each.address for each in place.open] == [0.3]


def test_of_two_that_answer_at_once_one_is_closed():
    place, won, _ = dial(0.5, 0.25)

    assert place.open == [won]


def test_where_nobody_answers_the_last_reason_is_told():
    with pytest.raises(ConnectionRefusedError, match="refused 3"):
        dial(REFUSES, REFUSES, REFUSES)
    with pytest.raises(OSError, match="no address"):
        dial()


def test_a_bug_is_not_taken_for_an_address_that_fails():
    with pytest.raises(ZeroDivisionError):
        dial(BUG, 0.1)


def test_who_gives_up_leaves_no_attempt_behind():
    with pytest.raises(TimeoutError):
        dial(DEAD, DEAD, within_s=3.0)


def test_one_address_is_simply_tried():
    place, _, took_s = dial(0.1)

    assert len(place.tried) == 1
    assert took_s == pytest.approx(0.1)


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
