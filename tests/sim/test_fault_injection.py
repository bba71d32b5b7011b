"""Faults in a simulated swarm: each does what it says, and is undone."""

import asyncio

import pytest
from sim.seed import SEED

from p2pswarm.base.ids import PeerId
from p2pswarm.sim.call import SimPeer
from p2pswarm.sim.fault_injection import LATE_S, SLOWER, FaultInjection
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.sim.world import WorldConfig

AT_S, SECONDS = 1.0, 2.0


class Seats:
    """Four machines without work."""

    def __init__(self) -> None:
        self.world = SimWorld(SEED, WorldConfig(bandwidth_bytes_per_s=1e6))
        self.processes: list[SimPeer] = [self.world.rpc(PeerId(bytes([n]) * 32)) for n in range(4)]
        self.log: list[str] = []
        self.last_holder = False

    @property
    def seats(self) -> int:
        return len(self.processes)

    def process_at(self, seat: int) -> SimPeer:
        return self.processes[seat]

    def may_end(self, seat: int, *, same: bool) -> bool:
        return not self.last_holder

    def end(self, seat: int, *, silent: bool, same: bool) -> None:
        self.log.append(f"end {seat} {silent}")
        self.world.kill(self.processes[seat].host.peer, silent=silent)

    def begin(self, seat: int, *, same: bool) -> None:
        self.log.append(f"begin {seat} {same}")

    def connected(self, a: int, b: int) -> bool:
        return self.world.world.connected(self.processes[a].host, self.processes[b].host)

    def cut(self) -> set[tuple[int, int]]:
        pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
        return {pair for pair in pairs if not self.connected(*pair)}


def during(seats: Seats, kind: FaultKind, *hit: int, silent: bool = False, look=lambda: None):
    """Let one fault happen; `look` is called in its midst. Returns the injection."""
    fault = Fault(kind, AT_S, SECONDS, hit, silent)
    injection = FaultInjection(FaultPlan(1, (fault,)), seats, seats.world)

    async def main() -> None:
        injection.start(asyncio.get_running_loop())
        await asyncio.sleep(AT_S + SECONDS / 2)
        look()
        await asyncio.sleep(2 * SECONDS)

    run(main(), SEED)
    return injection


@pytest.mark.parametrize(
    ("kind", "hit", "cut"),
    [
        (FaultKind.CUT, (0, 2), {(0, 2), (2, 0)}),
        (FaultKind.ONE_WAY, (0, 2), {(0, 2)}),
        (FaultKind.ISLAND, (0, 1), {(a, b) for a in (0, 1) for b in (2, 3)}),
        (FaultKind.REJOIN, (3,), {(a, 3) for a in range(3)}),
    ],
)
def test_paths_are_cut_for_a_while(kind, hit, cut):
    seats, seen = Seats(), set()
    if kind in (FaultKind.ISLAND, FaultKind.REJOIN):
        cut = cut | {(b, a) for a, b in cut}

    injection = during(seats, kind, *hit, look=lambda: seen.update(seats.cut()))

    assert seen == cut
    assert seats.cut() == set()
    assert len(injection.happened) == 1


def test_freeze_stops_a_process_for_a_while():
    seats, seen = Seats(), []
    suspension = seats.processes[1].suspension

    during(seats, FaultKind.FREEZE, 1, look=lambda: seen.append(suspension.stopped))

    assert seen == [True]
    assert not suspension.stopped


def test_slow_link_is_slow_for_a_while():
    seats, seen = Seats(), []
    host = seats.processes[1].host

    during(seats, FaultKind.SLOW, 1, look=lambda: seen.append((host.up_bytes_per_s, host.late_s)))

    assert seen == [(1e6 / SLOWER, LATE_S)]
    assert (host.up_bytes_per_s, host.down_bytes_per_s, host.late_s) == (1e6, 1e6, 0.0)


def test_a_link_that_is_slow_already_gets_no_slower():
    seats, seen = Seats(), []
    host = seats.processes[1].host
    faults = (
        Fault(FaultKind.SLOW, AT_S, SECONDS, (1,)),
        Fault(FaultKind.SLOW, AT_S, SECONDS / 2, (1,)),
    )
    injection = FaultInjection(FaultPlan(1, faults), seats, seats.world)

    async def main() -> None:
        injection.start(asyncio.get_running_loop())
        for at_s in (AT_S + SECONDS / 4, AT_S + 3 * SECONDS / 4):
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())
            seen.append(host.up_bytes_per_s)
        await asyncio.sleep(2 * SECONDS)

    run(main(), SEED)

    assert seen == [1e6 / SLOWER] * 2
    assert (host.up_bytes_per_s, host.down_bytes_per_s, host.late_s) == (1e6, 1e6, 0.0)


@pytest.mark.parametrize(("kind", "same"), [(FaultKind.KILL, False), (FaultKind.RESTART, True)])
def test_dead_machine_is_followed_by_another_or_by_itself(kind, same):
    seats = Seats()

    during(seats, kind, 2, silent=True)

    assert seats.log == ["end 2 True", f"begin 2 {same}"]


def test_last_holder_of_a_stage_does_not_die():
    seats = Seats()
    seats.last_holder = True

    injection = during(seats, FaultKind.KILL, 2)

    assert seats.log == []
    assert injection.happened == []


@pytest.mark.parametrize("kind", [FaultKind.KILL, FaultKind.FREEZE, FaultKind.REJOIN])
def test_dead_machine_is_hit_no_more(kind):
    seats = Seats()
    seats.end(2, silent=False, same=False)
    seats.log.clear()

    injection = during(seats, kind, 2)

    assert seats.log == []
    assert injection.happened == []


def test_reset_ends_the_link_between_two():
    seats = Seats()
    near, far = seats.processes[0], seats.processes[1]

    async def main() -> bool:
        link = seats.world.link_between(near, far)
        fault = Fault(FaultKind.RESET, AT_S, 0.0, (0, 1))
        FaultInjection(FaultPlan(1, (fault,)), seats, seats.world).start(asyncio.get_running_loop())
        await asyncio.sleep(AT_S + 1.0)
        return link.ended

    assert run(main(), SEED)


def test_whoever_watches_is_told_of_each_beginning_and_end():
    seats, times = Seats(), []
    injection = FaultInjection(
        FaultPlan(1, (Fault(FaultKind.FREEZE, AT_S, SECONDS, (1,)),)), seats, seats.world
    )

    async def main() -> None:
        loop = asyncio.get_running_loop()
        injection.changed = lambda: times.append(loop.time())
        injection.start(loop)
        await asyncio.sleep(10.0)

    run(main(), SEED)

    assert times == [AT_S, AT_S + SECONDS]


def test_aimed_fault_waits_for_its_step():
    seats, times = Seats(), []
    fault = Fault(FaultKind.FREEZE, 0.25, SECONDS, (1,), step=3)
    injection = FaultInjection(FaultPlan(1, (fault,)), seats, seats.world)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        injection.changed = lambda: times.append(loop.time())
        injection.step_counted(3)  # before the start nothing happens
        injection.start(loop)
        await asyncio.sleep(5.0)
        injection.step_counted(2)
        await asyncio.sleep(5.0)
        assert injection.quiet_from_s == 0.0
        injection.step_counted(3)
        await asyncio.sleep(5.0)

    run(main(), SEED)

    assert times == [10.25, 10.25 + SECONDS]
    assert injection.quiet_from_s == times[1]
