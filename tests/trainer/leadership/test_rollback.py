"""A run that goes back while its trainers die: whoever leads then finds the same checkpoint."""

import asyncio
from dataclasses import replace

import pytest
from core import core_of
from trainer.leadership.test_participant import CONFIG
from trainer.several import ManyTrainers, key
from trainer.test_several_trainers import LIMIT_S, check_exact, ended, start

from p2pswarm.progress.events import Report
from p2pswarm.sim.loop import run
from p2pswarm.trainer.reports.leadership import Leads, VotesLacking
from p2pswarm.trainer.reports.reports import CannotGoBack, NewestCopy, StepDone, WentBack

REWIND = replace(CONFIG, on_stage_lost="rewind", rewind_after_s=20.0)


def play(story, target, config=REWIND) -> ManyTrainers:
    async def whole() -> ManyTrainers:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(LIMIT_S):
            many = ManyTrainers(tasks, config, target=target)
            await story(many)
            for task in many.servers.values():
                task.cancel()
        return many

    return run(whole(), seed=5)


async def until(many: ManyTrainers, kind: type, **fields) -> str:
    """Wait for a report; who made it."""
    there = asyncio.get_running_loop().create_future()

    def heard(name: str, report: Report) -> None:
        same = isinstance(report, kind) and all(getattr(report, f) == v for f, v in fields.items())
        if same and not there.done():
            there.set_result(name)

    many.heard = heard
    return await there


def stage_without_voters(many: ManyTrainers, name: str) -> int:
    """A stage that may die and leave a majority of voters."""
    voters = {v.peer for v in many.trainers[name].trainer._seat.learner.chain.head.voters}
    voting = {s.stage for n, s in many.serving.items() if n.to_bytes(32) in voters}
    return next(s for s in range(many.config.stages) if s not in voting)


@pytest.mark.parametrize("silent", core_of([False, True], [True]))
def test_a_trainer_that_takes_over_after_going_back_finds_the_checkpoint(tmp_path, silent):
    async def story(many: ManyTrainers) -> None:
        await start(many)
        name = await until(many, StepDone, step=7)
        lost = many.kill_stage(stage_without_voters(many, name))
        await until(many, WentBack)
        many.kill(name, silent=silent)
        for number in lost:
            many.serve(number + 10)
        await ended(many, "b")

    many = play(story, tmp_path)

    check_exact(many, "b")
    assert [report.version for _, report in many.of_kind(WentBack)] == [6]
    assert "b" in [name for name, _ in many.of_kind(Leads)]


def test_a_trainer_that_cannot_read_the_target_after_a_takeover_tries_again(tmp_path):
    async def story(many: ManyTrainers) -> None:
        await start(many)
        name = await until(many, StepDone, step=7)
        lost = many.kill_stage(stage_without_voters(many, name))
        await until(many, WentBack)
        hidden = tmp_path.rename(tmp_path.with_name("hidden"))
        many.kill(name)
        await until(many, CannotGoBack)
        hidden.rename(tmp_path)
        for number in lost:
            many.serve(number + 10)
        await ended(many, "b")

    many = play(story, tmp_path)

    check_exact(many, "b")
    assert len(many.of_kind(CannotGoBack)) == 1


def test_a_trainer_that_takes_over_while_a_stage_is_lost_goes_back_itself(tmp_path):
    async def story(many: ManyTrainers) -> None:
        await start(many)
        name = await until(many, StepDone, step=7)
        lost = many.kill_stage(stage_without_voters(many, name))
        await until(many, NewestCopy)
        many.kill(name)
        for number in lost:
            many.serve(number + 10)
        await ended(many, "b")

    many = play(story, tmp_path)

    check_exact(many, "b")
    assert [(name, report.version) for name, report in many.of_kind(WentBack)] == [("b", 6)]


def test_without_a_checkpoint_that_can_be_read_the_run_waits_and_says_so(tmp_path):
    """What was saved may be there again tomorrow: all work is not thrown away for that."""

    async def story(many: ManyTrainers) -> None:
        await start(many, "a")
        await until(many, StepDone, step=7)
        many.kill_stage(1)
        hidden = tmp_path.rename(tmp_path.with_name("hidden"))
        await until(many, CannotGoBack)
        hidden.rename(tmp_path)
        many.serve(12)
        await until(many, WentBack)
        many.serve(13)
        await ended(many, "a")

    many = play(story, tmp_path)

    check_exact(many, "a")
    assert key("a").peer_id.raw == many.genesis.trainers[0]
    assert [report.version for _, report in many.of_kind(WentBack)] == [6]


def test_without_a_majority_of_voters_the_trainer_says_whom_it_lacks(tmp_path):
    async def story(many: ManyTrainers) -> None:
        await start(many)
        name = await until(many, StepDone, step=7)
        voters = many.trainers[name].trainer._seat.learner.chain.head.voters
        lost = {voter.peer for voter in voters} - {key(name).peer_id.raw}
        for other in many.trainers:
            if key(other).peer_id.raw in lost:
                many.kill(other)
        for number in list(many.serving):
            if number.to_bytes(32) in lost:
                many.kill_stage(many.serving[number].stage)
                break
        await until(many, VotesLacking)
        many.trainers[name].leave.set()
        await ended(many, name)

    many = play(story, tmp_path)

    (_, silent) = many.of_kind(VotesLacking)[0]
    assert len(silent.voters) == 2
    assert many.of_kind(WentBack) == []
