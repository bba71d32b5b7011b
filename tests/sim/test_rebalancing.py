"""Servers that move between stages in virtual time: the run becomes faster, and loses nothing."""

import asyncio
import itertools

import pytest
from core import core_of
from sim.seed import SEED

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BalanceConfig, BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.balance.balance_reports import (
    OrderedMove,
    OrderedPreparation,
)
from p2pswarm.trainer.balance.move_preparation import StopPreparing
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import (
    MemberJoined,
    MemberLost,
    MemberReady,
    Replayed,
    RunBegun,
    StepDone,
)

FAST_AND_SLOW = (4.0, 1.0, 4.0, 1.0, 4.0, 1.0, 4.0, 1.0)
"""Every second server is slow: stage 1 does a quarter of what stage 0 does."""


ROOM = 1 << 30
"""Memory for two stages."""

ROOMS = pytest.mark.parametrize(
    "free_bytes",
    [
        pytest.param(None, id="leaves first", marks=pytest.mark.full),
        pytest.param(ROOM, id="fetches first"),
    ],
)
"""Who fetches first passes through all that who leaves first does, and through more."""

SHARED = "a server has come that shares the work"
"""Why a microbatch is launched again without being lost: docs/training.md."""


def uneven(seed: int, rule: str = "priced", steps: int = 14, **changes) -> SwarmConfig:
    """Eight servers on two stages, four on each; the first move is ordered in step 5."""
    balance = BalanceConfig(rule=rule, every_s=20.0)
    batch = BatchConfig(microbatches=16, rows=1, evaluate_every=0)
    settings = {
        "seed": seed,
        "run": small_run(stages=2, steps=steps, min_replicas=4, batch=batch, balance=balance),
        "servers": 8,
        "speeds": FAST_AND_SLOW,
        "cost": Cost(forward_s=0.2, state_bytes=4 << 20),
    }
    return SwarmConfig(**(settings | changes))


def steps_of(seed: int, at_once: int, at_last: int) -> int:
    """As many steps as a story takes: the first seed's moves are ordered soonest."""
    return at_once if seed == SEED else at_last


def played(config: SwarmConfig) -> tuple[SimSwarm, list[float]]:
    """The run, and how long each step took."""
    swarm, ends_s = SimSwarm(config), []

    def heard(report: Report) -> None:
        if isinstance(report, RunBegun | StepDone):
            ends_s.append(asyncio.get_running_loop().time())

    swarm.heard = heard
    result = run(swarm.play(), config.seed)
    assert not result.ended.failed, result.ended.reason
    assert result.steps == config.run.steps
    return swarm, [b - a for a, b in itertools.pairwise(ends_s)]


def of(swarm: SimSwarm, kind: type) -> list:
    return [report for report in swarm.reports if isinstance(report, kind)]


def idle_s(config: SwarmConfig) -> list[float]:
    """How long each mover served no stage."""
    swarm, left_s, idle = SimSwarm(config), {}, []

    def heard(report: Report) -> None:
        now_s = asyncio.get_running_loop().time()
        if isinstance(report, OrderedMove):
            left_s[report.incarnation.peer] = now_s
        elif isinstance(report, MemberReady) and report.incarnation.peer in left_s:
            idle.append(now_s - left_s.pop(report.incarnation.peer))

    swarm.heard = heard
    result = run(swarm.play(), config.seed)
    assert not result.ended.failed, result.ended.reason
    assert not left_s
    return idle


@pytest.mark.parametrize("seed", core_of(range(SEED, SEED + 2), [SEED]))
def test_who_has_room_for_both_stages_is_missing_for_moments(seed):
    state = Cost(forward_s=0.2, state_bytes=32 << 20)  # 1.3 s at 25 MB/s

    steps = steps_of(seed, 13, 30)

    prepared = idle_s(uneven(seed, steps=steps, cost=state, free_bytes=ROOM))
    leaving = idle_s(uneven(seed, steps=steps, cost=state))

    assert prepared
    assert leaving
    assert max(prepared) < 0.1  # virtual: two round trips and a digest
    assert min(leaving) > 1.0


def test_who_has_room_for_one_stage_leaves_first():
    swarm, _ = played(uneven(SEED, free_bytes=1 << 20))

    assert of(swarm, OrderedMove)
    assert of(swarm, OrderedPreparation) == []


def test_who_says_that_it_has_room_and_has_not_serves_on_and_leaves_first_later():
    """The coordinator takes an old word: memory was free when it was told."""
    config = uneven(SEED, free_bytes=ROOM, steps=18)
    swarm = SimSwarm(config)
    begun = swarm.machines

    def heard(report: Report) -> None:
        if isinstance(report, OrderedPreparation):  # somebody else has taken the memory
            peer = report.incarnation.peer
            one = next(one for one in begun if one.rpc.host.peer.raw == peer)
            object.__setattr__(one.server._context, "free_bytes", lambda: 1 << 20)

    swarm.heard = heard
    result = run(swarm.play(), config.seed)

    assert not result.ended.failed, result.ended.reason
    asked = {one.incarnation.peer for one in of(swarm, OrderedPreparation)}
    stopped = {one.move.mover.peer for one in of(swarm, StopPreparing)}
    assert asked
    assert asked == stopped
    assert {one.incarnation.peer for one in of(swarm, OrderedMove)}


@ROOMS
@pytest.mark.parametrize("seed", core_of(range(SEED, SEED + 3), [SEED]))
def test_servers_move_to_the_slow_stage_and_no_microbatch_is_lost(seed, free_bytes):
    """Counted otherwise than once, a simulated stage stops the run."""
    swarm, took_s = played(uneven(seed, free_bytes=free_bytes))

    moves = of(swarm, OrderedMove)
    assert {(move.source, move.target) for move in moves} <= {(0, 1), (1, 0)}
    assert moves
    lost = of(swarm, MemberLost)
    assert [report.voided for report in lost] == [0] * len(lost)
    assert {report.reason for report in lost} == {move.reason for move in moves}
    assert {report.reason for report in of(swarm, Replayed)} <= {SHARED}
    assert min(took_s[-5:]) < 0.6 * took_s[0]


def test_nobody_moves_where_rebalancing_is_off():
    swarm, took_s = played(uneven(SEED, "off", steps=8))

    assert of(swarm, OrderedMove) == []
    assert min(took_s[-3:]) > 0.6 * took_s[0]


def test_servers_move_one_by_one_by_the_rule_of_the_paper():
    swarm, _ = played(uneven(SEED, "swarm"))

    moves = of(swarm, OrderedMove)
    assert moves
    assert all(move.planned == 1 for move in moves)


def test_an_even_swarm_stays_as_it_is():
    swarm, _ = played(uneven(SEED, speeds=(1.0,)))

    assert of(swarm, OrderedMove) == []


@ROOMS
@pytest.mark.parametrize("seed", core_of(range(SEED, SEED + 4), [SEED]))
def test_machines_that_die_while_others_move_lose_nothing(seed, free_bytes):
    """A kill each 7 s, of trainers too, from about the first move on."""
    kills = tuple(
        Fault(FaultKind.KILL, 7.0 * number, 5.0, ((number + seed) % 10,), silent=number % 2 == 0)
        for number in range(3, 14)
    )
    faults = FaultPlan(seed, kills)
    swarm, _ = played(
        uneven(
            seed,
            steps=steps_of(seed, 20, 25),
            trainers=2,
            faults=faults,
            patience_s=3_000.0,
            free_bytes=free_bytes,
        )
    )

    assert of(swarm, OrderedMove)


@ROOMS
@pytest.mark.parametrize("seed", core_of(range(SEED, SEED + 3), [SEED]))
def test_a_mover_that_dies_on_its_way_is_replaced_and_nothing_is_lost(seed, free_bytes):
    cost = Cost(forward_s=0.2, state_bytes=64 << 20)
    steps = steps_of(seed, 24, 45)
    config = uneven(seed, steps=steps, cost=cost, patience_s=3_000.0, free_bytes=free_bytes)
    swarm, dead = SimSwarm(config), []

    def heard(report: Report) -> None:
        on_its_way = OrderedPreparation if free_bytes else OrderedMove
        if isinstance(report, on_its_way) and not dead:
            peer = report.incarnation.peer
            machine = next(one for one in swarm.machines if one.rpc.host.peer.raw == peer)
            dead.append(peer)
            asyncio.get_running_loop().call_later(
                0.1 + (seed - SEED), lambda: swarm.kill(machine, silent=False)
            )

    swarm.heard = heard
    result = run(swarm.play(), seed)

    assert not result.ended.failed, result.ended.reason
    assert dead
    assert {one.incarnation.peer for one in of(swarm, OrderedMove)} - set(dead)


@pytest.mark.parametrize("seed", core_of(range(SEED, SEED + 2), [SEED]))
def test_a_donor_and_the_coordinator_die_while_a_mover_fetches(seed):
    """Its pieces come from others; the next coordinator knows of no move, and asks for one."""
    state = Cost(forward_s=0.2, state_bytes=64 << 20)  # 2.7 s at 25 MB/s
    steps = steps_of(seed, 24, 30)
    config = uneven(seed, steps=steps, trainers=3, cost=state, patience_s=3_000.0, free_bytes=ROOM)
    swarm, deaths = SimSwarm(config), []

    def donor_dies(target: int) -> None:
        one = next(m for m in swarm.machines if m.record.stage == target and m.record.holds_weights)
        swarm.kill(one, silent=False)

    def coordinator_dies() -> None:
        seat = swarm.trainers.seats.index(swarm.trainers.leader)
        swarm.end(seat, silent=False, same=True)
        asyncio.get_running_loop().call_later(5.0, lambda: swarm.begin(seat, same=True))

    def heard(report: Report) -> None:
        if isinstance(report, OrderedPreparation) and not deaths:
            deaths.append(report)
            loop = asyncio.get_running_loop()
            loop.call_later(0.5, donor_dies, report.target)
            loop.call_later(1.0 + (seed - SEED) / 2, coordinator_dies)

    swarm.heard = heard
    result = run(swarm.play(), seed)

    assert not result.ended.failed, result.ended.reason
    assert result.steps == config.run.steps
    assert len(of(swarm, Leads)) > 1
    assert len(of(swarm, OrderedPreparation)) > 1
    assert of(swarm, OrderedMove)


def test_a_newcomer_helps_the_slow_stage_though_it_has_more_servers():
    balance = BalanceConfig(steady_s=1e5)  # nobody else moves
    batch = BatchConfig(microbatches=16, rows=1, evaluate_every=0)
    config = uneven(
        SEED,
        run=small_run(stages=2, steps=8, min_replicas=4, batch=batch, balance=balance),
        speeds=(*FAST_AND_SLOW, 1.0),
        latecomers_s=(8.0,),
    )
    swarm, _ = played(config)

    last = of(swarm, MemberJoined)[-1]
    assert last.stage == 1
