"""Several addresses of one name: the first that answers wins, in virtual time."""

import asyncio

import pytest

from p2pswarm.net.os.attempt_stagger import ATTEMPT_DELAY_S
from p2pswarm.net.os.happy_eyeballs import first_connected
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
