"""Several trainers add up one cost: whoever takes over goes on with the sums."""

import asyncio

import pytest
from trainer.leadership.test_participant import CONFIG
from trainer.several import ManyTrainers
from trainer.test_several_trainers import after_step, ended, start

from p2pswarm.node.progress.cost_io import CostKeeper, CostPlan
from p2pswarm.progress.events import Report
from p2pswarm.run.messages.cost import MachinePrice
from p2pswarm.sim.loop import run
from p2pswarm.trainer.leadership.standby_streams import SPENT_EVERY_S
from p2pswarm.trainer.members.run_cost import CostTerms, RunCost
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import RunFinished

A_SECOND = 900.0
"""What each machine costs an hour: a quarter a second."""
BATCH = CONFIG.batch.microbatches, CONFIG.step_tokens


class PricedTrainers(ManyTrainers):
    """All machines have the same price, and each trainer an account of its own."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        super().__init__(tasks)
        self.price = MachinePrice(A_SECOND)
        self.keepers: dict[str, CostKeeper] = {}
        self.sums: dict[str, float] = {}
        """What a trainer had added up when it was asked last."""

    def cost_of(self, name: str) -> RunCost:
        cost = RunCost(CostTerms("USD", A_SECOND, 0.0), BATCH)
        self.keepers[name] = CostKeeper(cost, CostPlan(0.0, None, saves=False), lambda _event: None)
        return cost

    def reported(self, name: str, report: Report) -> None:
        self.keepers[name].on_report(report, lambda _peer: True)
        super().reported(name, report)

    def total(self, name: str) -> float:
        return self.keepers[name].cost.spent(asyncio.get_running_loop().time()).total


def play(story) -> PricedTrainers:
    async def whole() -> PricedTrainers:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(300.0):
            many = PricedTrainers(tasks)
            await story(many)
            for task in many.servers.values():
                task.cancel()
        return many

    return run(whole(), seed=5)


def test_all_machines_are_paid_for_the_standby_too():
    async def story(many: PricedTrainers) -> None:
        begun_s = asyncio.get_running_loop().time()
        await start(many)
        await ended(many, "a", "b")
        many.sums["a"] = many.total("a")
        many.sums["seconds"] = asyncio.get_running_loop().time() - begun_s

    many = play(story)

    machines = 6  # two trainers and four servers
    assert 0.5 < many.sums["a"] / (machines * many.sums["seconds"] * A_SECOND / 3_600) <= 1.0
    tokens = many.keepers["a"].cost.spent(1e9).tokens
    assert tokens == CONFIG.steps * CONFIG.step_tokens


@pytest.mark.parametrize("silent", [False, True])
def test_who_takes_over_goes_on_with_what_the_run_has_cost(silent):
    async def story(many: PricedTrainers) -> None:
        def die(name: str) -> None:
            many.sums[name] = many.total(name)
            many.sums["died_s"] = asyncio.get_running_loop().time()
            many.kill(name, silent=silent)

        def heard(name: str, report: Report) -> None:
            if name == "b" and isinstance(report, Leads):
                many.sums["b"] = many.total("b")
                many.sums["led_s"] = asyncio.get_running_loop().time()

        await start(many)
        after_step(many, 8, die)
        before = many.reported

        def both(name: str, report: Report) -> None:
            before(name, report)
            heard(name, report)

        many.reported = both
        await ended(many, "b")
        many.sums["end"] = many.total("b")

    many = play(story)

    machines = 6
    missed_s = SPENT_EVERY_S + many.sums["led_s"] - many.sums["died_s"]
    assert many.sums["b"] > 0
    assert many.sums["b"] >= many.sums["a"] - machines * SPENT_EVERY_S * A_SECOND / 3_600
    assert many.sums["b"] <= many.sums["a"] + machines * missed_s * A_SECOND / 3_600
    assert many.sums["end"] > many.sums["b"]


def test_an_owner_ends_the_run_and_the_standby_has_not_failed():
    async def story(many: PricedTrainers) -> None:
        await start(many)
        after_step(many, 4, lambda name: many.trainers[name].trainer.end("the budget is spent"))
        await ended(many, "a", "b")

    many = play(story)

    over = RunFinished("the budget is spent", failed=False)
    assert [many.trainers[name].ended for name in "ab"] == [over, over]
