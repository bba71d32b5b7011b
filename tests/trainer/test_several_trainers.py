"""Several trainers: whichever dies, freezes or leaves, the weights are those of the plain loop."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine

import pytest
from core import core_of
from trainer.leadership.test_participant import CONFIG, distance, plain
from trainer.several import ManyTrainers

from p2pswarm.progress.events import Report
from p2pswarm.sim.loop import run
from p2pswarm.trainer.members.quarantine import QUARANTINE_S
from p2pswarm.trainer.reports.leadership import Leads, TrainerEnlisted
from p2pswarm.trainer.reports.reports import RunFinished, StepDone

LIMIT_S = 300.0


def play(story: Callable[[ManyTrainers], Coroutine], config=CONFIG, seed: int = 5) -> ManyTrainers:
    async def whole() -> ManyTrainers:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(LIMIT_S):
            many = ManyTrainers(tasks, config, seed)
            await story(many)
            for task in many.servers.values():
                task.cancel()
        return many

    return run(whole(), seed=seed)


def after_step(many: ManyTrainers, step: int, then: Callable[[str], None]) -> None:
    """Call `then` with the coordinator's name when a step is done, once."""

    def heard(name: str, report: Report) -> None:
        if isinstance(report, StepDone) and report.step == step:
            many.heard = lambda name, report: None
            asyncio.get_running_loop().call_soon(then, name)

    many.heard = heard


def check_exact(many: ManyTrainers, *names: str) -> None:
    for name in names:
        assert many.trainers[name].ended == RunFinished("all steps are done", failed=False)
    (weights,) = [one.weights for one in many.trainers.values() if one.weights is not None]
    assert distance(weights, plain(many.config, many.chain.codecs).flat.params_N.detach()) <= 1e-9
    done = [report.step for _, report in many.of_kind(StepDone)]
    assert sorted(set(done)) == list(range(many.config.steps))


async def start(many: ManyTrainers, trainers: str = "ab") -> None:
    for name in trainers:
        many.train(name)
    for number in range(2, 6):
        many.serve(number)


async def ended(many: ManyTrainers, *names: str) -> None:
    await asyncio.wait([many.trainers[name].task for name in names])


def test_a_standby_enlists_and_ends_with_the_run():
    async def story(many: ManyTrainers) -> None:
        await start(many)
        await ended(many, "a", "b")

    many = play(story)

    check_exact(many, "a", "b")
    assert [name for name, _ in many.of_kind(TrainerEnlisted)] == ["a"]
    last = many.trainers["a"].trainer._seat.learner.chain.last
    assert len(last.trainers) == 2
    assert len(last.voters) == 3


def test_a_trainer_that_comes_while_the_coordinator_says_goodbye_is_told_that_the_run_is_over():
    async def story(many: ManyTrainers) -> None:
        def heard(name: str, report: Report) -> None:
            if name == "a" and isinstance(report, RunFinished):
                many.kill("c", silent=True)  # the goodbyes wait for it
                asyncio.get_running_loop().call_later(1.0, again)

        def again() -> None:
            many.kill("b")
            many.train("b")

        await start(many, "abc")
        many.heard = heard
        await ended(many, "a", "b")

    check_exact(play(story), "a", "b")


@pytest.mark.parametrize(
    ("step", "silent"),
    core_of(itertools.product((2, 4, 11), (False, True)), [(2, True), (4, False), (11, True)]),
)
def test_the_coordinator_is_killed_and_the_standby_goes_on(step, silent):
    async def story(many: ManyTrainers) -> None:
        await start(many)
        after_step(many, step, lambda name: many.kill(name, silent=silent))
        await ended(many, "b")

    many = play(story)

    check_exact(many, "b")
    assert [report.term for name, report in many.of_kind(Leads) if name == "b"] >= [2]


def test_who_leads_next_knows_which_servers_have_no_work():
    liar = b"l" * 32

    async def story(many: ManyTrainers) -> None:
        def found(name: str) -> None:
            servers = many.trainers[name].trainer.coordinator._blame.servers
            servers.quarantine(liar, asyncio.get_running_loop().time())
            after_step(many, 8, many.kill)

        await start(many)
        after_step(many, 2, found)
        await ended(many, "b")

    many = play(story)

    check_exact(many, "b")
    servers = many.trainers["b"].trainer.coordinator._blame.servers
    assert servers.avoided(liar, 0.0)
    assert servers.quarantine(liar, 0.0) == 2 * QUARANTINE_S
