"""Tests of `sim/faults.py`."""

import asyncio

import pytest
from chaos.fault_draw import (
    AIM_S,
    DEADLY,
    DRAWN,
    FIRST_S,
    KINDS,
    PAIRED,
    FaultOptions,
    draw_plan,
    kinds_named,
)
from hypothesis import given
from hypothesis import strategies as st
from sim.seed import SEED

from p2pswarm.base.ids import PeerId
from p2pswarm.sim.compute import LOOK_S, Processor
from p2pswarm.sim.faults import CRAWLS, LATE_S, SLOWER, Fault, FaultInjection, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.process import SimPeer
from p2pswarm.sim.rpc import SimWorld

OPTIONS = FaultOptions(faults=(0, 30))


@given(seed=st.integers(0, 2**63), servers=st.integers(1, 12), trainers=st.integers(1, 3))
def test_plan_is_in_order_and_hits_seats_that_exist(seed: int, servers: int, trainers: int):
    options = FaultOptions(servers=servers, trainers=trainers)

    plan = draw_plan(seed, options)

    assert plan == draw_plan(seed, options)
    assert plan.trainers == trainers
    times = [fault.at_s for fault in plan.faults if fault.step is None]
    assert times == sorted(times)
    assert all(at_s >= FIRST_S for at_s in times)
    for fault in plan.faults:
        assert len(set(fault.seats)) == len(fault.seats) >= 1
        assert all(0 <= seat < options.seats for seat in fault.seats)
        assert len(fault.seats) == 2 or fault.kind not in PAIRED


@given(seed=st.integers(0, 2**32))
def test_trainers_die_only_where_that_is_asked(seed: int):
    kill = FaultOptions(kinds=DEADLY, trainers=2, servers=2, faults=(20, 20))
    also_trainers = FaultOptions(
        kinds=DEADLY, trainers=2, servers=2, faults=(200, 200), mortal_trainers=True
    )

    assert {seat for fault in draw_plan(seed, kill).faults for seat in fault.seats} <= {2, 3}
    hit = {seat for fault in draw_plan(seed, also_trainers).faults for seat in fault.seats}
    assert hit == {0, 1, 2, 3}


def test_every_kind_is_drawn_and_only_the_kinds_that_are_asked_for():
    kinds = {fault.kind for seed in range(40) for fault in draw_plan(seed, OPTIONS).faults}
    assert kinds == set(DRAWN)

    every = FaultOptions(kinds=tuple(FaultKind), faults=(0, 30))
    kinds = {fault.kind for seed in range(40) for fault in draw_plan(seed, every).faults}
    assert kinds == set(FaultKind)

    only = FaultOptions(kinds=(FaultKind.RESET, FaultKind.FREEZE))
    kinds = {fault.kind for seed in range(9) for fault in draw_plan(seed, only).faults}
    assert kinds == {FaultKind.RESET, FaultKind.FREEZE}


@pytest.mark.parametrize(("aimed", "share"), [(0.0, {False}), (0.5, {False, True}), (1.0, {True})])
def test_a_share_of_the_faults_is_aimed_at_the_end_of_a_step(aimed, share):
    options = FaultOptions(aimed=aimed, steps=4, faults=(60, 60))

    faults = draw_plan(1, options).faults

    assert {fault.step is not None for fault in faults} == share
    hit = [fault for fault in faults if fault.step is not None]
    assert all(0.0 <= fault.at_s <= AIM_S for fault in hit)
    assert {fault.step for fault in hit} <= set(range(4))


def test_kinds_have_names_and_a_wrong_one_is_told_which_there_are():
    assert kinds_named(["kill", "one-way"]) == (FaultKind.KILL, FaultKind.ONE_WAY)
    assert len(KINDS) == len(FaultKind)

    with pytest.raises(ValueError, match="no fault is called kil, x: choose from kill, restart"):
        kinds_named(["kil", "freeze", "x"])


@pytest.mark.parametrize("wrong", [{"servers": 0}, {"trainers": 0}, {"kinds": ()}, {"aimed": 2.0}])
def test_impossible_options_are_refused(wrong):
    with pytest.raises(ValueError, match=r"swarm of|no kind|share of"):
        FaultOptions(**wrong)


AT_S, SECONDS = 1.0, 2.0


class Seats:
    """Four machines without work."""

    def __init__(self) -> None:
        self.world = SimWorld(SEED, WorldConfig(bandwidth_bytes_per_s=1e6))
        self.processes: list[SimPeer] = [self.world.rpc(PeerId(bytes([n]) * 32)) for n in range(4)]
        self.log: list[str] = []
        self.processors = [None, *(Processor(1.0) for _ in range(3))]
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

    def wipe(self, seat: int) -> None:
        self.log.append(f"wipe {seat}")

    def processor_at(self, seat: int) -> Processor | None:
        return self.processors[seat]

    def visit(self, *, trainer: bool, silent: bool):
        self.log.append(f"visit trainer={trainer}")
        return lambda: self.log.append(f"leave silent={silent}")

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


@pytest.mark.parametrize("kind", [FaultKind.KILL, FaultKind.FREEZE, FaultKind.CRAWL])
def test_a_machine_that_has_not_come_yet_is_hit_by_nothing(kind):
    seats = Seats()

    injection = during(seats, kind, seats.seats)

    assert injection.happened == []
    assert seats.log == []


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


def test_a_machine_that_loses_its_disk_comes_back_as_the_same_peer():
    seats = Seats()

    during(seats, FaultKind.WIPE, 2, silent=True)

    assert seats.log == ["end 2 True", "wipe 2", "begin 2 True"]


def test_a_server_crawls_for_a_while_and_a_trainer_never():
    seats, seen = Seats(), []
    processor = seats.processors[1]

    during(seats, FaultKind.CRAWL, 1, look=lambda: seen.append(processor.slowness))
    trainer = during(seats, FaultKind.CRAWL, 0)

    assert seen == [CRAWLS]
    assert processor.slowness == 1.0
    assert trainer.happened == []


@pytest.mark.parametrize("slow_s", [2.0, 40.0])
def test_a_computation_that_has_begun_is_quick_again_when_its_processor_is(slow_s: float):
    processor, work_s = Processor(2.0), 1.0

    async def main() -> float:
        loop = asyncio.get_running_loop()
        processor.slowness = CRAWLS
        loop.call_later(slow_s, setattr, processor, "slowness", 1.0)
        await processor(lambda: processor.spend(work_s))
        return loop.time()

    took_s = run(main(), SEED)

    assert slow_s < took_s <= slow_s + work_s / 2 + LOOK_S


@pytest.mark.parametrize(("kind", "trainer"), [(FaultKind.VISIT, False), (FaultKind.STANDBY, True)])
def test_a_guest_comes_and_goes(kind, trainer):
    seats = Seats()

    during(seats, kind, silent=True)

    assert seats.log == [f"visit trainer={trainer}", "leave silent=True"]


def test_a_fault_that_is_in_no_plan_happens_at_once_or_not_at_all():
    seats, seen = Seats(), []
    injection = FaultInjection(FaultPlan(1, ()), seats, seats.world)

    async def main() -> None:
        injection.start(asyncio.get_running_loop())
        assert injection.let_happen(Fault(FaultKind.FREEZE, 0.0, SECONDS, (1,)))
        seen.append(seats.processes[1].suspension.stopped)
        seats.last_holder = True
        assert not injection.let_happen(Fault(FaultKind.KILL, 0.0, SECONDS, (2,)))
        await asyncio.sleep(2 * SECONDS)

    run(main(), SEED)

    assert seen == [True]
    assert not seats.processes[1].suspension.stopped


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
        injection.on_step_work(3)  # before the start nothing happens
        injection.start(loop)
        await asyncio.sleep(5.0)
        injection.on_step_work(2)
        await asyncio.sleep(5.0)
        assert injection.quiet_from_s == 0.0
        injection.on_step_work(3)
        await asyncio.sleep(5.0)

    run(main(), SEED)

    assert times == [10.25, 10.25 + SECONDS]
    assert injection.quiet_from_s == times[1]
