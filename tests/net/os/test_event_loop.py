"""The eager poller: it looks only while looking pays, and finds what a plain one finds."""

import asyncio
import selectors
import socket
import threading

import pytest

from p2pswarm.net.os.event_loop import LOOK_S, SHORT_WAITS, EagerSelector, run


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs, EagerSelector(short_s=float("inf")) as selector:  # however slow we are
        selector.register(ours, selectors.EVENT_READ)
        yield selector, theirs


def make_eager(selector: EagerSelector) -> None:
    for _ in range(SHORT_WAITS):
        selector.select(2 * LOOK_S)


def test_it_looks_after_enough_short_waits_in_a_row_until_it_looks_in_vain(pair):
    selector, _ = pair
    counts = []
    for _ in range(SHORT_WAITS + 2):
        selector.select(2 * LOOK_S)
        counts.append(selector._short_waits)

    assert counts == [*range(1, SHORT_WAITS + 1), 0, 1]


def test_a_long_wait_is_not_counted():
    with EagerSelector(short_s=0.0) as selector:
        make_eager(selector)

        assert selector._short_waits == 0


@pytest.mark.parametrize("looks", [False, True])
def test_it_tells_what_is_ready(pair, looks):
    selector, theirs = pair
    if looks:
        make_eager(selector)
    theirs.send(b"x")

    assert [key.fd for key, _ in selector.select(10.0)] == [
        key.fd for key in selector.get_map().values()
    ]


def test_what_comes_after_the_look_wakes_it(pair):
    selector, theirs = pair
    make_eager(selector)
    later = threading.Timer(50 * LOOK_S, theirs.send, (b"x",))
    later.start()

    assert len(selector.select(None)) == 1
    later.join()


@pytest.mark.parametrize("timeout_s", [0, -1, LOOK_S / 2, 3 * LOOK_S])
def test_a_timeout_ends_the_wait(pair, timeout_s):
    selector, _ = pair
    make_eager(selector)

    assert selector.select(timeout_s) == []


def test_a_program_runs_on_it():
    async def main() -> tuple[str, str]:
        reader, writer = await asyncio.open_connection(sock=ours)
        for _ in range(20):
            theirs.send(b"a line\n")
            line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        loop = asyncio.get_running_loop()
        return line.decode(), type(loop._selector).__name__

    ours, theirs = socket.socketpair()
    with theirs:
        assert run(main()) == ("a line\n", "EagerSelector")
