"""Tests of `sim/stream_end.py`."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from p2pswarm.base.errors import LinkLost, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.sim.link import DEAD_AFTER_S
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.process import Population, SimProcess
from p2pswarm.sim.stream_end import FRAME_COST_BYTES, WINDOW_BYTES, SimReceiveBuffers, SimStreamEnd

ALICE, BOB = PeerId(b"a" * 32), PeerId(b"b" * 32)


def set_aside(size_bytes: int) -> tuple[SimReceiveBuffers, bytearray, list[str]]:
    """One buffer for Alice, transfer 1."""
    buffers, memory, filled = SimReceiveBuffers(), bytearray(size_bytes), []
    buffer = buffers.set_aside(ALICE, memoryview(memory), lambda: filled.append("filled"))
    assert buffer.transfer == 1
    return buffers, memory, filled


def test_chunks_may_come_in_any_order():
    buffers, memory, filled = set_aside(4)

    assert buffers.on_arrival(ALICE, 1, 2, b"cd")
    assert filled == []
    assert buffers.on_arrival(ALICE, 1, 0, b"ab")

    assert memory == b"abcd"
    assert filled == ["filled"]


def test_an_empty_buffer_is_full_at_once():
    buffers, _, filled = set_aside(0)

    assert filled == ["filled"]
    assert buffers.on_arrival(ALICE, 1, 0, b"late")


@pytest.mark.parametrize("given", ["filled", "dropped"])
def test_late_chunks_are_thrown_away(given):
    buffers, memory, _ = set_aside(2)
    if given == "filled":
        buffers.on_arrival(ALICE, 1, 0, b"ab")
    else:
        buffers.drop(1)

    assert buffers.on_arrival(ALICE, 1, 0, b"xy")

    assert b"xy" not in memory


@pytest.mark.parametrize(
    ("peer", "transfer", "offset", "chunk"),
    [(BOB, 1, 0, b"a"), (ALICE, 1, 3, b"ab"), (ALICE, 2, 0, b"a"), (ALICE, 0, 0, b"a")],
    ids=["of another peer", "beyond the end", "never granted", "no number"],
)
def test_bytes_that_fit_no_buffer_are_a_breach(peer, transfer, offset, chunk):
    buffers, memory, filled = set_aside(4)

    assert not buffers.on_arrival(peer, transfer, offset, chunk)

    assert memory == bytes(4)
    assert filled == []


class Timer:
    """A callback that is due at a time, unless it is cancelled."""

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback, self.args = callback, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0

    def time(self) -> float:
        return self.now_s

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> Timer:
        del context
        self._count += 1
        timer = Timer(callback, args)
        self._timers.append((when, self._count, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> Timer:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.call_at(self.now_s, callback, *args)

    def run(self, until_s: float = math.inf) -> None:
        while self._timers:
            first = min(self._timers, key=lambda timer: timer[:2])
            if first[0] > until_s:
                return
            self._timers.remove(first)
            if not first[2].cancelled:
                self.now_s = max(self.now_s, first[0])
                first[2].callback(*first[2].args)


class Heard:
    """A stream that notes what it is told."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bool]] = []
        self.credits = 0
        self.errors: list[SwarmError] = []

    def on_frame(self, frame: bytes, *, ended: bool) -> None:
        self.frames.append((frame, ended))

    def on_credit(self) -> None:
        self.credits += 1

    def fail(self, error: SwarmError) -> None:
        self.errors.append(error)


class Pair:
    """Two ends, each with a stream that listens."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.population: Population[SimProcess] = Population(1, WorldConfig(), lambda: self.clock)
        self.processes = [self._process(name) for name in (b"a", b"b")]
        self.buffers = [SimReceiveBuffers(), SimReceiveBuffers()]
        near, far = self.processes
        self.near = SimStreamEnd(near, far, self.buffers[0])
        self.far = SimStreamEnd(far, near, self.buffers[1])
        self.near.join(self.far)
        self.far.join(self.near)
        self.near.stream, self.far.stream = Heard(), Heard()

    def _process(self, name: bytes) -> SimProcess:
        host = self.population.enter(PeerId(name * 32), None)
        return self.population.start(SimProcess(self.population, host))

    def kill_far(self, *, silent: bool) -> None:
        self.population.kill(self.processes[1].host.peer, silent=silent)


def test_frames_arrive_in_order_and_the_ends_close():
    pair = Pair()
    pair.near.send(0, b"one", ended=False)
    pair.near.send(0, b"two", ended=True)
    pair.clock.run()
    assert pair.far.stream.frames == [(b"one", False), (b"two", True)]
    assert not pair.near.gone

    pair.far.send(0, b"bye", ended=True)
    pair.clock.run()

    assert pair.near.stream.frames == [(b"bye", True)]
    assert pair.near.gone
    assert pair.far.gone
    assert pair.processes[0].lost == {}


def test_credit_runs_out_and_comes_back_when_frames_are_read():
    pair = Pair()
    frame = bytes(WINDOW_BYTES // 2)
    assert pair.near.writable(0)
    pair.near.send(0, frame, ended=False)
    pair.near.send(0, frame, ended=False)
    assert not pair.near.writable(0)
    pair.clock.run()
    assert pair.near.stream.credits == 0

    pair.far.consume(0, len(frame))
    pair.clock.run()

    assert pair.near.stream.credits == 1
    assert pair.near.writable(0)


def test_small_frames_are_credited_together():
    pair = Pair()
    for _ in range(4):
        pair.far.consume(0, WINDOW_BYTES // 8 - FRAME_COST_BYTES)

    pair.clock.run()

    assert pair.near.stream.credits == 1


def test_after_leaving_what_still_comes_is_thrown_away_and_credited():
    pair = Pair()
    heard = pair.far.stream
    pair.far.leave()

    pair.near.send(0, bytes(WINDOW_BYTES), ended=False)
    pair.clock.run()

    assert heard.frames == []
    assert pair.near.writable(0)


def test_a_reset_reaches_the_other_end_once():
    pair = Pair()

    pair.near.reset(0, 16)
    pair.clock.run()
    pair.near.reset(0, 16)
    pair.clock.run()

    assert len(pair.far.stream.errors) == 1
    assert pair.near.gone
    assert pair.far.gone


def test_a_reset_after_leaving_is_told_to_nobody():
    pair = Pair()
    heard = pair.far.stream
    pair.far.leave()

    pair.near.reset(0, 16)
    pair.clock.run()

    assert heard.errors == []
    assert pair.far.gone


@pytest.mark.parametrize(("silent", "least_s"), [(False, 0.0), (True, DEAD_AFTER_S)])
def test_a_process_that_dies_is_noticed_in_time(silent, least_s):
    pair = Pair()

    pair.kill_far(silent=silent)
    pair.clock.run()

    assert [type(error) for error in pair.near.stream.errors] == [LinkLost]
    assert least_s <= pair.clock.now_s < least_s + 1.0


def test_a_path_that_is_cut_ends_both_ends_in_time():
    pair = Pair()
    pair.population.world.partition([pair.processes[1].host.peer])

    pair.near.send(0, b"lost", ended=False)
    assert pair.near.post_bulk(1, 0, b"x")
    pair.clock.run()

    assert pair.clock.now_s == DEAD_AFTER_S
    assert len(pair.near.stream.errors) == len(pair.far.stream.errors) == 1
    assert pair.far.stream.frames == []
    assert not pair.near.post_bulk(1, 0, b"x")


def test_a_path_that_is_whole_again_in_time_loses_nothing_and_keeps_the_order():
    pair = Pair()
    pair.population.world.partition([pair.processes[1].host.peer])
    pair.near.send(0, b"one", ended=False)
    pair.near.send(0, b"two", ended=False)
    pair.clock.run(until_s=DEAD_AFTER_S - 1.0)

    pair.population.world.heal()
    pair.near.send(0, b"three", ended=False)
    pair.clock.run()

    assert [frame for frame, _ in pair.far.stream.frames] == [b"one", b"two", b"three"]
    assert pair.near.stream.errors == pair.far.stream.errors == []


def test_a_path_that_is_cut_one_way_ends_both_ends_too():
    pair = Pair()
    near, far = (process.host for process in pair.processes)
    pair.population.world.cut([(near, far)])

    pair.near.send(0, b"lost", ended=False)
    pair.far.send(0, b"heard", ended=False)
    pair.clock.run()

    assert pair.near.stream.frames == [(b"heard", False)]
    assert pair.far.stream.frames == []
    assert len(pair.near.stream.errors) == len(pair.far.stream.errors) == 1


def test_a_path_that_was_cut_twice_is_whole_when_it_is_mended_twice():
    pair = Pair()
    world, path = pair.population.world, [tuple(process.host for process in pair.processes)]
    world.cut(path)
    world.cut(path)

    world.mend(path)
    assert not world.connected(*path[0])
    world.mend(path)

    assert world.connected(*path[0])


def test_a_stopped_process_reads_what_came_when_it_goes_on():
    pair = Pair()
    pair.population.freeze(pair.processes[1])
    pair.near.send(0, b"one", ended=False)
    pair.clock.run(until_s=DEAD_AFTER_S - 1.0)
    assert pair.far.stream.frames == []

    pair.population.thaw(pair.processes[1])
    pair.clock.run()

    assert pair.far.stream.frames == [(b"one", False)]
    assert pair.near.stream.errors == pair.far.stream.errors == []


def test_a_process_stopped_for_too_long_finds_its_link_lost_after_what_came():
    pair = Pair()
    pair.population.freeze(pair.processes[1])
    pair.near.send(0, b"one", ended=False)

    pair.clock.run()
    assert pair.clock.now_s == DEAD_AFTER_S
    assert len(pair.near.stream.errors) == 1
    assert pair.far.stream.errors == []
    pair.population.thaw(pair.processes[1])

    assert pair.far.stream.frames == [(b"one", False)]
    assert len(pair.far.stream.errors) == 1


def test_a_link_that_is_reset_is_lost_to_both_ends_at_once():
    pair = Pair()
    near, far = (process.host for process in pair.processes)

    pair.population.reset(near, far)
    pair.clock.run()

    assert pair.clock.now_s == pair.processes[0].way_s(far)
    assert [len(end.stream.errors) for end in (pair.near, pair.far)] == [1, 1]


def test_a_machine_that_starts_again_resets_the_links_it_had():
    pair = Pair()
    pair.kill_far(silent=True)

    pair.population.enter(pair.processes[1].host.peer, None)
    pair.clock.run(until_s=1.0)

    assert len(pair.near.stream.errors) == 1


def test_bulk_bytes_go_round_the_frames_into_their_buffer():
    pair = Pair()
    memory, filled = bytearray(4), []
    peer = pair.processes[0].host.peer
    transfer = pair.buffers[1].set_aside(peer, memoryview(memory), lambda: filled.append(1))

    assert pair.near.post_bulk(transfer.transfer, 0, b"data")
    pair.clock.run()

    assert memory == b"data"
    assert filled == [1]
    assert pair.near.uplink_wait_s == 0.0


def test_bulk_bytes_that_nobody_granted_end_the_link():
    pair = Pair()

    assert pair.near.post_bulk(7, 0, b"data")
    pair.clock.run()

    assert [len(end.stream.errors) for end in (pair.near, pair.far)] == [1, 1]


def test_the_uplink_takes_its_time():
    pair = Pair()
    pair.processes[0].host.up_bytes_per_s = 100.0

    pair.near.post_bulk(7, 0, bytes(50))

    assert pair.near.uplink_wait_s == pytest.approx(0.5)


def test_a_dead_process_hears_nothing():
    pair = Pair()
    pair.near.send(0, b"one", ended=False)
    pair.near.post_bulk(7, 0, b"data")
    pair.kill_far(silent=True)
    heard = pair.far.stream

    pair.clock.run()

    assert heard.frames == []


def test_an_end_that_was_left_is_told_nothing_more():
    pair = Pair()
    heard = pair.near.stream
    pair.near.leave()

    pair.far.consume(0, WINDOW_BYTES)
    pair.kill_far(silent=False)
    pair.clock.run()

    assert heard.credits == 0
    assert heard.errors == []
    assert pair.near.gone
