"""Servers that move between stages in virtual time: the run becomes faster, and loses nothing."""

import asyncio
import itertools

import pytest
from sim.seed import SEED

from p2pswarm.config import BalanceConfig, BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.balance import OrderedMove

FAST_AND_SLOW = (4.0, 1.0, 4.0, 1.0, 4.0, 1.0, 4.0, 1.0)
"""Every second server is slow: stage 1 does a quarter of what stage 0 does."""


SHARED = "a server has come that shares the work"
"""Why a microbatch is launched again without being lost: docs/training.md."""


def uneven(seed: int, rule: str = "priced", steps: int = 30, **changes) -> SwarmConfig:
    """Eight servers on two stages, four on each."""
    balance = BalanceConfig(rule=rule, every_s=20.0)
    batch = BatchConfig(microbatches=32, rows=1, evaluate_every=0)
    settings = {
        "seed": seed,
        "run": small_run(stages=2, steps=steps, min_replicas=4, batch=batch, balance=balance),
        "servers": 8,
        "speeds": FAST_AND_SLOW,
        "cost": Cost(forward_s=0.1, state_bytes=4 << 20),
    }
    return SwarmConfig(**(settings | changes))


def played(config: SwarmConfig) -> tuple[SimSwarm, list[float]]:
    """The run, and how long each step took."""
    swarm, ends_s = SimSwarm(config), []

    def heard(report: act.Report) -> None:
        if isinstance(report, act.RunBegun | act.StepDone):
            ends_s.append(asyncio.get_running_loop().time())

    swarm.heard = heard
    result = run(swarm.play(), config.seed)
    assert not result.ended.failed, result.ended.reason
    assert result.steps == config.run.steps
    return swarm, [b - a for a, b in itertools.pairwise(ends_s)]


def of(swarm: SimSwarm, kind: type) -> list:
    return [report for report in swarm.reports if isinstance(report, kind)]


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_servers_move_to_the_slow_stage_and_no_microbatch_is_lost(seed):
    """Counted otherwise than once, a simulated stage stops the run."""
    swarm, took_s = played(uneven(seed))

    moves = of(swarm, OrderedMove)
    assert {(move.source, move.target) for move in moves} <= {(0, 1), (1, 0)}
    assert moves
    lost = of(swarm, act.MemberLost)
    assert [report.voided for report in lost] == [0] * len(lost)
    assert {report.reason for report in lost} == {move.reason for move in moves}
    assert {report.reason for report in of(swarm, act.Replayed)} <= {SHARED}
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
    swarm, _ = played(uneven(SEED, speeds=(1.0,), steps=20))

    assert of(swarm, OrderedMove) == []


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_machines_that_die_while_others_move_lose_nothing(seed):
    """A kill each 7 s, of trainers too, from about the first move on."""
    kills = tuple(
        Fault(FaultKind.KILL, 7.0 * number, 5.0, ((number + seed) % 10,), silent=number % 2 == 0)
        for number in range(3, 14)
    )
    faults = FaultPlan(seed, kills)
    swarm, _ = played(uneven(seed, steps=25, trainers=2, faults=faults, patience_s=3_000.0))

    assert of(swarm, OrderedMove)


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_a_mover_that_dies_on_its_way_is_replaced_and_nothing_is_lost(seed):
    cost = Cost(forward_s=0.1, state_bytes=64 << 20)
    config = uneven(seed, steps=45, cost=cost, patience_s=3_000.0)
    swarm, dead = SimSwarm(config), []

    def heard(report: act.Report) -> None:
        if isinstance(report, OrderedMove) and not dead:
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
    assert len(of(swarm, OrderedMove)) > 1


def test_a_newcomer_helps_the_slow_stage_though_it_has_more_servers():
    balance = BalanceConfig(steady_s=1e5)  # nobody else moves
    batch = BatchConfig(microbatches=32, rows=1, evaluate_every=0)
    config = uneven(
        SEED,
        run=small_run(stages=2, steps=8, min_replicas=4, batch=batch, balance=balance),
        speeds=(*FAST_AND_SLOW, 1.0),
        latecomers_s=(8.0,),
    )
    swarm, _ = played(config)

    last = of(swarm, act.MemberJoined)[-1]
    assert last.stage == 1
