"""Many servers lost in one moment: the run goes on while one copy of each stage's weights lives."""

import asyncio
import itertools
from collections.abc import Callable

import pytest
from core import core_of
from sim.seed import SEED

from p2pswarm.progress.events import Report
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, SwarmResult, small_run
from p2pswarm.trainer.reports.reports import RunBegun, RunFinished, StepDone, WeightsSought

STAGES, SERVERS, STEPS = 3, 12, 4
STRUCK_AT = 1  # the step after which it happens: version 2, which no newcomer can draw
WAITS_S = 200.0
ALL_DONE = RunFinished("all steps are done", failed=False)
Blow = Callable[[SimSwarm], None]


def swarm_of(steps: int = STEPS) -> SimSwarm:
    return SimSwarm(
        SwarmConfig(seed=SEED, run=small_run(stages=STAGES, steps=steps), servers=SERVERS)
    )


def survivors(swarm: SimSwarm, each: int) -> list:
    """The first servers of each stage that hold its weights."""
    holding = [machine for machine in swarm.machines if machine.record.holds_weights]
    of_stage = [[m for m in holding if m.server.stage == stage] for stage in range(STAGES)]
    return [machine for machines in of_stage for machine in machines[:each]]


def kill_all_but(swarm: SimSwarm, left: list, *, silent: bool) -> None:
    for machine in swarm.machines:
        if machine.died_s is None and machine not in left:
            swarm.kill(machine, silent=silent)


async def struck(swarm: SimSwarm, after_step: int, blow: Blow) -> asyncio.Task[SwarmResult]:
    """Play until a step is done, and strike in the midst of the next."""
    done = asyncio.Event()

    def heard(report: Report) -> None:
        begun = isinstance(report, RunBegun) and after_step < 0
        stepped = isinstance(report, StepDone) and report.step == after_step
        if begun or stepped:
            done.set()

    swarm.heard = heard
    playing = asyncio.create_task(swarm.play())
    await done.wait()
    await asyncio.sleep(0.3)
    blow(swarm)
    return playing


def steps_of(swarm: SimSwarm) -> list[int]:
    return [report.step for report in swarm.reports if isinstance(report, StepDone)]


@pytest.mark.parametrize(
    ("left", "silent"), core_of(itertools.product((2, 1), (False, True)), [(2, False), (1, True)])
)
def test_run_goes_on_when_half_of_the_swarm_or_all_but_one_a_stage_die_at_once(left, silent):
    """The simulated weights raise an error unless each microbatch is counted once."""
    swarm = swarm_of()

    async def main() -> SwarmResult:
        return await (
            await struck(
                swarm,
                STRUCK_AT,
                lambda swarm: kill_all_but(swarm, survivors(swarm, left), silent=silent),
            )
        )

    result = run(main(), SEED)

    assert result.ended == ALL_DONE
    assert steps_of(swarm) == list(range(STEPS))
    assert sum(machine.died_s is None for machine in swarm.machines) == left * STAGES


@pytest.mark.full
def test_newcomers_take_over_from_one_server_a_stage_that_then_leaves():
    swarm = swarm_of(steps=12)

    async def main() -> SwarmResult:
        playing = await struck(
            swarm, STRUCK_AT, lambda swarm: kill_all_but(swarm, survivors(swarm, 1), silent=False)
        )
        old = [machine for machine in swarm.machines if machine.died_s is None]
        for _ in range(2 * STAGES):
            swarm.join()
        leaving = [asyncio.create_task(swarm.dismiss(machine, 30.0, 25.0)) for machine in old]
        result = await playing
        await asyncio.wait(leaving)
        return result

    result = run(main(), SEED)

    assert result.ended == ALL_DONE
    assert steps_of(swarm) == list(range(12))
    assert sum(machine.died_s is None for machine in swarm.machines) == 2 * STAGES


@pytest.mark.parametrize("same", [False, True], ids=["other machines", "the same peers"])
def test_run_waits_and_says_so_when_no_server_holds_weights_any_more(same):
    """The trainer has no weights: it waits for a server that has, and names the last holders."""
    swarm = swarm_of()

    def restart_all(swarm: SimSwarm) -> None:
        for machine in list(swarm.machines):
            swarm.kill(machine, silent=False, same=same)
            swarm.join(machine if same else None)

    async def main() -> bool:
        playing = await struck(swarm, STRUCK_AT, restart_all)
        await asyncio.wait((playing,), timeout=WAITS_S)
        ended = playing.done()
        playing.cancel()
        await asyncio.wait((playing,))
        return ended

    assert not run(main(), SEED)
    sought = [report for report in swarm.reports if isinstance(report, WeightsSought)]
    assert {report.stage for report in sought} == set(range(STAGES))
    assert {report.version for report in sought} == {STRUCK_AT + 1}
    assert steps_of(swarm) == list(range(STRUCK_AT + 1))


def test_run_begins_anew_from_the_seed_when_all_servers_die_before_the_first_commit():
    swarm = swarm_of()

    def restart_all(swarm: SimSwarm) -> None:
        for machine in list(swarm.machines):
            swarm.kill(machine, silent=False)
            swarm.join()

    async def main() -> SwarmResult:
        return await (await struck(swarm, -1, restart_all))

    result = run(main(), SEED)

    assert result.ended == ALL_DONE
    assert steps_of(swarm) == list(range(STEPS))


def test_run_goes_on_from_servers_that_were_stopped_while_all_others_died():
    """Newcomers wait without weights; those who have them wake up, and serve."""
    swarm = swarm_of()

    async def main() -> SwarmResult:
        stopped: list = []

        def blow(swarm: SimSwarm) -> None:
            stopped.extend(survivors(swarm, 1))
            for machine in stopped:
                swarm.world.freeze(machine.rpc)
            kill_all_but(swarm, stopped, silent=False)
            for _ in range(STAGES):
                swarm.join()

        playing = await struck(swarm, STRUCK_AT, blow)
        await asyncio.sleep(60.0)
        assert not playing.done()
        for machine in stopped:
            swarm.world.thaw(machine.rpc)
        return await playing

    result = run(main(), SEED)

    assert result.ended == ALL_DONE
    assert steps_of(swarm) == list(range(STEPS))
