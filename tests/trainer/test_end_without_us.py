"""A trainer that comes back after the end: whose word it takes, and what it tells its user."""

import asyncio

from trainer.leadership.test_rollback import until
from trainer.several import ManyTrainers, key
from trainer.test_several_trainers import ended, play, start

from p2pswarm.run.messages.run import Finished, RunOver
from p2pswarm.trainer.reports.reports import RunFinished, StepDone

STEPS = 12


def back_alone(many: ManyTrainers, *says: tuple[str, RunOver]) -> list[bool]:
    """What b, which nobody leads, makes of records of the run's end."""
    trainer = many.trainers["b"].trainer
    return [trainer.on_run_over(key(name).peer_id.raw, over) for name, over in says]


def test_only_a_trainer_that_the_chain_names_is_believed_and_only_about_this_run():
    async def story(many: ManyTrainers) -> None:
        await start(many)
        await until(many, StepDone, step=4)
        many.kill("b")
        for task in many.servers.values():
            task.cancel()
        many.kill("a")
        many.train("b")
        await asyncio.sleep(1.0)
        over = RunOver(many.run_id, STEPS, "all steps are done")
        other = RunOver(b"x" * 16, STEPS, "all steps are done")
        many.believed = back_alone(many, ("z", over), ("a", other), ("a", over))
        await ended(many, "b")

    many = play(story)

    assert many.believed == [False, False, True]
    assert many.trainers["b"].ended == RunFinished("all steps are done", failed=False)
    assert many.trainers["b"].ended.version == STEPS


def test_a_trainer_that_leads_is_told_no_end():
    async def story(many: ManyTrainers) -> None:
        await start(many, "a")
        over = RunOver(many.run_id, STEPS, "all steps are done")
        await asyncio.sleep(1.0)
        many.believed = many.trainers["a"].trainer.on_run_over(key("a").peer_id.raw, over)
        await ended(many, "a")

    assert play(story).believed is False


def test_a_standby_is_told_at_which_version_the_run_ended():
    """Its chain may lack the last record: that does not make the end a failure."""

    async def story(many: ManyTrainers) -> None:
        await start(many)
        await ended(many, "a", "b")

    many = play(story)

    assert many.trainers["b"].ended.version == many.config.steps
    assert not many.trainers["b"].ended.failed


def test_an_end_that_a_chain_lags_behind_is_no_failure():
    async def story(many: ManyTrainers) -> None:
        await start(many)
        await until(many, StepDone, step=4)
        many.trainers["b"].trainer._on_finished(Finished("all steps are done", many.config.steps))
        await ended(many, "a", "b")

    many = play(story)

    assert many.trainers["b"].ended == RunFinished("all steps are done", failed=False)
