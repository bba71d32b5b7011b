"""Codecs that change while leaders die and the run goes back; a loop reads them in the chain."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from core import core_of
from trainer.leadership.test_participant import CONFIG
from trainer.leadership.test_rollback import stage_without_voters, until
from trainer.several import ManyTrainers
from trainer.test_several_trainers import LIMIT_S, after_step, check_exact, ended, start

from p2pswarm.run.chain.chain import CodecTable
from p2pswarm.settings.codec_ladder import LADDER, allowed_codes
from p2pswarm.settings.config import CodecConfig, RunConfig
from p2pswarm.sim.loop import run
from p2pswarm.trainer.balance.codec_choice import CodecsChosen, Measurements
from p2pswarm.trainer.reports.reports import StepDone, WentBack

COARSEST = LADDER[-1]
MEASURED = replace(
    CONFIG,
    codecs=CodecConfig(
        choice="measured",
        coarsest=(COARSEST.activation, COARSEST.gradient),
        last_boundary=COARSEST.activation,
    ),
)
DELAYED = replace(MEASURED, delay=1)
EVERY = 3


class RotatingCodecs:
    """Another rung each three steps, and other ones under each coordinator."""

    def __init__(self, run: RunConfig, offset: int) -> None:
        self._codes = sorted(allowed_codes(run.codecs, run.stages)[0])
        self._offset = offset

    def choose(self, step: int, stages: Measurements) -> CodecTable:
        assert len(stages) == 2
        turn = step // EVERY + 5 * self._offset
        return self._codes[turn % len(self._codes)], b""

    def boundaries(self):
        return ()

    def why(self, _stage: int) -> str:
        return "it is its turn"


def rotating() -> Callable[[RunConfig, CodecTable, int], RotatingCodecs]:
    made = itertools.count()
    return lambda run, _present, _version: RotatingCodecs(run, next(made))


def play(story, config=MEASURED, target=None) -> ManyTrainers:
    async def whole() -> ManyTrainers:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(LIMIT_S):
            many = ManyTrainers(tasks, config, 5, target, rotating())
            await story(many)
            for task in many.servers.values():
                task.cancel()
        return many

    return run(whole(), seed=5)


def tables(many: ManyTrainers) -> list[CodecTable]:
    return [many.chain.codecs(step) for step in range(many.config.steps)]


@pytest.mark.parametrize("config", core_of([MEASURED, DELAYED], [DELAYED]))
def test_codecs_that_change_every_third_step_make_the_weights_of_a_loop_that_reads_the_chain(
    config: RunConfig,
):
    async def story(many: ManyTrainers) -> None:
        await start(many, "a")
        await ended(many, "a")

    many = play(story, config)

    check_exact(many, "a")
    held = tables(many)
    first = 2 + config.delay
    assert held[:first] == [()] * first
    changes = [step for step, (a, b) in enumerate(itertools.pairwise(held), 1) if a != b]
    assert changes == list(range(first, config.steps, EVERY))
    told = [report.step for _, report in many.of_kind(CodecsChosen)]
    assert [step for step in told if step < config.steps] == changes


@pytest.mark.parametrize("config", core_of([MEASURED, DELAYED], [DELAYED]))
@pytest.mark.parametrize("step", core_of([2, 3, 4, 5], [5]))
def test_a_leader_that_dies_at_a_change_alters_nothing(step: int, config: RunConfig):
    async def story(many: ManyTrainers) -> None:
        await start(many)
        after_step(many, step, lambda name: many.kill(name, silent=step % 2 == 0))
        await ended(many, "b")

    many = play(story, config)

    check_exact(many, "b")
    assert len(set(tables(many))) > 3


@pytest.mark.parametrize("config", core_of([MEASURED, DELAYED], [DELAYED]))
def test_after_going_back_the_codecs_are_those_of_the_records_that_stand(
    tmp_path, config: RunConfig
):
    async def story(many: ManyTrainers) -> None:
        await start(many)
        name = await until(many, StepDone, step=7)
        lost = many.kill_stage(stage_without_voters(many, name))
        await until(many, WentBack)
        for number in lost:
            many.serve(number + 10)
        await ended(many, "a", "b")

    many = play(story, replace(config, on_stage_lost="rewind", rewind_after_s=20.0), tmp_path)

    check_exact(many, "a", "b")
    assert [report.version for _, report in many.of_kind(WentBack)] == [6]
