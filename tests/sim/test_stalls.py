"""A stall in a whole run in virtual time: the true cause is named, two seconds after its time."""

import asyncio
from dataclasses import dataclass

import pytest
from core import core_of
from sim.seed import SEED

from p2pswarm.base.errors import Busy, NotServing, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.progress.events import Report
from p2pswarm.progress.step_pace import STALL_STEPS
from p2pswarm.run.messages.waits import AskWaits, ServerWaits
from p2pswarm.server.stage_server import ASKED_BURST
from p2pswarm.settings.parser import run_id, run_to_json
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.rpc import SimRpc
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import StepDone
from p2pswarm.trainer.reports.step_seconds import StallCause, Stalling, StallOver, StepTimed
from p2pswarm.trainer.stall.stall_watch import LEAST_S

TOLD_WITHIN_S = 2.0  # after the third step's time
TRAINER, FIRST, SECOND, THIRD = range(4)
"""Seats: of the trainer, and of the servers in the order in which they came."""


@dataclass(frozen=True, slots=True)
class TimedReport:
    at_s: float
    report: Report


@dataclass(slots=True)
class Played:
    swarm: SimSwarm
    reports: list[TimedReport]

    def peers(self, *seats: int) -> tuple[bytes, ...]:
        return tuple(self.swarm.process_at(seat).host.peer.raw for seat in seats)

    def of(self, kind: type) -> list[TimedReport]:
        return [one for one in self.reports if isinstance(one.report, kind)]

    def first_stall(self) -> Stalling:
        """The first one, told in time."""
        told = self.of(Stalling)[0]
        begun_s = max(one.at_s for one in self.of(StepDone) if one.at_s < told.at_s)
        stall = told.report
        due_s = begun_s + max(LEAST_S, STALL_STEPS * stall.usual_s)
        if stall.cause is not StallCause.STOPPED:
            assert due_s <= told.at_s <= due_s + TOLD_WITHIN_S
        return stall


def play(fault: Fault, *, stages: int = 3, seed: int = SEED, **changes) -> Played:
    """Three servers: one a stage, or all of one stage."""
    config = SwarmConfig(
        seed=seed,
        run=small_run(steps=6, stages=stages, min_replicas=3 // stages),
        servers=3,
        faults=FaultPlan(1, (fault,)),
        **changes,
    )
    swarm = SimSwarm(config)
    played = Played(swarm, [])

    def heard(report: Report) -> None:
        played.reports.append(TimedReport(asyncio.get_running_loop().time(), report))

    swarm.heard = heard
    result = run(swarm.play(), seed)
    assert result.steps == 6
    return played


def by_stage(played: Played) -> dict[int, int]:
    """The seat of each stage's server: they join in an order, and are given stages by need."""
    machines = enumerate(played.swarm.machines[:3], start=FIRST)
    return {machine.server.stage: seat for seat, machine in machines}


SEEDS = core_of(range(SEED, SEED + 4), [SEED])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_is_frozen_is_named_and_so_is_its_end(seed):
    played = play(Fault(FaultKind.FREEZE, 3.0, 20.0, (SECOND,)), seed=seed)

    stall = played.first_stall()
    assert (stall.cause, stall.peers) == (StallCause.SILENT, played.peers(SECOND))
    assert len(played.of(StallOver)) == 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ends", [(FIRST, SECOND), (SECOND, FIRST)])
def test_a_link_that_loses_one_direction_is_named(ends, seed):
    played = play(Fault(FaultKind.ONE_WAY, 3.0, 20.0, ends), seed=seed)

    stall = played.first_stall()
    assert by_stage(played)[0] == FIRST
    assert stall.cause is StallCause.LINK
    assert set(stall.peers) == set(played.peers(*ends))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partner_whose_link_is_slow_holds_up_the_averaging(seed):
    played = play(
        Fault(FaultKind.SLOW, 0.0, 30.0, (SECOND,), step=2),
        stages=1,
        seed=seed,
        cost=Cost(gradient_bytes=16_000_000),
        world=WorldConfig(bandwidth_bytes_per_s=100e6),
    )

    stall = played.first_stall()
    assert (stall.cause, stall.peers) == (StallCause.AVERAGING, played.peers(SECOND))


@pytest.mark.parametrize("seed", SEEDS)
def test_two_that_cannot_average_are_named_and_the_third_is_not(seed):
    played = play(Fault(FaultKind.ONE_WAY, 0.0, 20.0, (FIRST, THIRD), step=2), stages=1, seed=seed)

    stall = played.first_stall()
    assert stall.cause is StallCause.LINK
    assert set(stall.peers) == set(played.peers(FIRST, THIRD))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_trainer_that_was_stopped_names_itself(seed):
    played = play(Fault(FaultKind.FREEZE, 3.0, 12.0, (TRAINER,)), seed=seed)

    told = played.of(Stalling)[0]
    assert told.report.cause is StallCause.STOPPED
    assert 11.0 < told.report.for_s < 13.0 + TOLD_WITHIN_S


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_computes_a_hundred_times_slower_is_named(seed):
    played = play(Fault(FaultKind.CRAWL, 3.0, 20.0, (SECOND,)), seed=seed)

    stall = played.first_stall()
    assert stall.peers == played.peers(SECOND)
    assert stall.cause in (StallCause.COMPUTING, StallCause.QUEUE)


@pytest.mark.parametrize("delay", [0, 1])
def test_the_seconds_of_each_stage_and_of_the_chain_are_the_steps(delay):
    swarm = SimSwarm(SwarmConfig(seed=SEED, run=small_run(steps=6, delay=delay)))
    run(swarm.play(), SEED)

    timed = [one for one in swarm.reports if isinstance(one, StepTimed)]
    assert len(timed) == 6
    for one in timed[1:-1]:  # of the last, not all tell before the run is over
        assert sum(link.seconds for link in one.chain) == pytest.approx(one.duration_s)
        for row in one.stages:
            assert (row.servers, row.doubtful) == (2, 0)
            assert row.seconds.sum_s == pytest.approx(one.duration_s, rel=0.03)


def test_a_stranger_learns_a_few_times_a_second_what_a_server_waits_for():
    """An answer is cheap, and an open run's servers answer everybody."""
    swarm = SimSwarm(SwarmConfig(seed=SEED, run=small_run(steps=3)))
    said: list[ServerWaits] = []
    refused: list[type] = []

    async def ask(rpc: SimRpc, question: AskWaits) -> None:
        try:
            answer = await rpc.call(swarm.machines[0].rpc.contact, question, 5.0)
        except SwarmError as error:
            refused.append(type(error))
        else:
            assert isinstance(answer, ServerWaits)
            said.append(answer)

    async def main() -> None:
        playing = asyncio.create_task(swarm.play())
        await swarm.open.wait()
        await swarm.machines[0].server.serving()
        question = AskWaits(run_id(run_to_json(swarm.config.run)))
        stranger = swarm.world.rpc(PeerId(b"z" * 32))
        await asyncio.gather(*(ask(stranger, question) for _ in range(3 * ASKED_BURST)))
        await ask(stranger, AskWaits(b"another run's id"))
        await playing

    run(main(), SEED)

    assert len(said) == ASKED_BURST
    assert refused == [*[Busy] * (2 * ASKED_BURST), NotServing]
    assert said[0].stage is not None
