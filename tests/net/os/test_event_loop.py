"""The eager poller: it looks only while looking pays, and finds what a plain one finds."""

import asyncio
import selectors
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from p2pswarm.net.os.event_loop import (
    LOOK_S,
    SHORT_WAITS,
    EagerSelector,
    new_loop,
    run,
    signals_handled,
)
from p2pswarm.sim.loop import run as in_virtual_time

ROOT = Path(__file__).parents[3]
PATIENCE_S = 20.0


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs, EagerSelector(float("inf"), processors=2) as selector:  # however slow we are
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


def test_on_one_processor_it_never_looks():
    with EagerSelector(float("inf"), processors=1) as selector:
        make_eager(selector)

        assert selector._short_waits == 0


def test_a_long_wait_is_not_counted():
    with EagerSelector(short_s=0.0, processors=2) as selector:
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


async def answer(value: int) -> tuple[int, int]:
    """A value, and the thread in which it was made."""
    return value, threading.get_ident()


async def test_where_a_loop_runs_already_it_has_a_thread_of_its_own():
    """As in a cell of a notebook, which calls without `await`."""
    value, thread = run(answer(7))

    assert value == 7
    assert thread != threading.get_ident()
    assert asyncio.get_running_loop().is_running()


def test_where_none_runs_it_stays_in_the_thread():
    assert run(answer(7)) == (7, threading.get_ident())


async def test_its_error_is_the_callers_there_too():
    async def fail() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        run(fail())


def test_an_interrupt_ends_what_runs_beside():
    """Ctrl-C, or the button of a notebook, reaches the main thread, which waits."""
    program = """
import asyncio, os, signal
from p2pswarm.net.os.event_loop import run

async def for_ever():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        print("was told to end", flush=True)

async def cell():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(for_ever())
    except KeyboardInterrupt:
        print("interrupted")

asyncio.run(cell())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout == "was told to end\ninterrupted\n"


async def test_virtual_time_has_a_thread_of_its_own_there_too():
    async def an_hour() -> float:
        await asyncio.sleep(3_600.0)
        return asyncio.get_running_loop().time()

    assert in_virtual_time(an_hour(), 1) == pytest.approx(3_600.0)


def test_a_signal_that_another_thread_gets_wakes_the_loop():
    """On Windows, Ctrl-C never interrupts a `select`."""
    heard = asyncio.Event()

    async def main() -> None:
        signal.signal(signal.SIGTERM, lambda *_: heard.set())
        threading.Thread(target=signal.raise_signal, args=(signal.SIGTERM,)).start()
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()

    before = signal.getsignal(signal.SIGTERM)
    try:
        run(main())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.set_wakeup_fd(-1) == -1


def test_signals_are_handled_on_a_loop_that_has_no_handlers_of_its_own():
    numbers = []

    async def main() -> None:
        heard = asyncio.Event()

        def on_signal(number: int) -> None:
            numbers.append(number)
            heard.set()

        with signals_handled(asyncio.get_running_loop(), [signal.SIGTERM], on_signal):
            signal.raise_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                await heard.wait()

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(main())

    assert numbers == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_clock_of_a_loop_is_fine():
    """With one that steps by 16 ms, an answer of this machine would take no time."""
    loop = new_loop()
    times = [loop.time() for _ in range(1000)]
    loop.close()

    assert len(set(times)) > 100
