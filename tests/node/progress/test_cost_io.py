"""A trainer's account: what it tells, what it keeps, and when it ends the run."""

import asyncio
import json
from pathlib import Path

import pytest

from p2pswarm.node.progress.cost_file import read_cost
from p2pswarm.node.progress.cost_io import CostKeeper, CostPlan
from p2pswarm.progress.cost_events import BudgetReached, CostSoFar
from p2pswarm.progress.events import Note
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.cost import MachinePrice, Spent
from p2pswarm.testing import run
from p2pswarm.trainer.members.run_cost import CostTerms, RunCost
from p2pswarm.trainer.reports.cost import ServerPriced, StandbyPriced
from p2pswarm.trainer.reports.leadership import Leads, SteppedDown
from p2pswarm.trainer.reports.reports import MemberJoined, RunFinished, StepDone

ONE = Incarnation(b"1" * 32, 1)
STEP = StepDone(0, 2.0, 1.0, 1e-3, 8)
HOUR_S, MINUTE_S = 3_600.0, 60.0


UNCOUNTED = (
    "servers that you have not invited cost $2.00 an hour, as they say, of which $0.00 count: "
    "invite yours (p2pswarm invite), or set train.price_limit to what they cost"
)


class Trainer:
    """An account in virtual time, and all that it told."""

    def __init__(
        self,
        budget: float = 0.0,
        own: float = 0.0,
        limit: float = 0.0,
        file: Path | None = None,
        *,
        saves: bool = True,
        invited: bool = True,
        before: Spent | None = None,
    ) -> None:
        self.told: list[object] = []
        cost = RunCost(CostTerms("USD", own, limit), (8, 1_000), before)
        self.keeper = CostKeeper(cost, CostPlan(budget, file, saves), self.told.append)
        self._invited = invited

    def report(self, report: object) -> None:
        self.keeper.on_report(report, lambda _peer: self._invited)

    def of(self, kind: type) -> list[object]:
        return [event for event in self.told if isinstance(event, kind)]

    async def live(self, seconds: float) -> None:
        """Work on for so long."""
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(self.keeper.run())
            await asyncio.sleep(seconds)
            working.cancel()


def test_a_budget_is_told_at_80_percent_and_ends_the_run_at_100():
    async def story() -> Trainer:
        trainer = Trainer(budget=10.0, own=100.0)
        trainer.report(Leads(1, 0))
        await trainer.live(0.09 * HOUR_S)
        assert not trainer.keeper.spent.is_set()
        await trainer.live(0.02 * HOUR_S)
        assert trainer.keeper.spent.is_set()
        return trainer

    trainer = run(story(), 1)

    near, over = trainer.of(BudgetReached)
    assert (near.over, over.over) == (False, True)
    assert 8.0 <= near.total < 8.05
    assert 10.0 <= over.total < 10.05
    assert trainer.keeper.reason == "the budget of $10.00 is spent"


def test_a_trainer_that_stands_by_ends_nothing():
    async def story() -> Trainer:
        trainer = Trainer(budget=1.0, own=100.0, before=Spent("USD", trainer=50.0))
        trainer.report(Leads(1, 0))
        trainer.report(SteppedDown("another one leads"))
        await trainer.live(MINUTE_S)
        return trainer

    trainer = run(story(), 1)

    assert not trainer.keeper.spent.is_set()
    assert trainer.told == []


def test_costs_are_told_each_half_minute_and_at_the_end():
    async def story() -> Trainer:
        trainer = Trainer(own=1.0)
        trainer.report(Leads(1, 0))
        await trainer.live(95.0)
        trainer.report(STEP)
        trainer.report(RunFinished("all steps are done", failed=False))
        return trainer

    costs = run(story(), 1).of(CostSoFar)

    assert len(costs) == 1 + 3 + 1
    assert costs[-1].tokens == 1_000


def test_a_run_whose_machines_are_ones_own_has_no_word_of_money(tmp_path):
    async def story() -> Trainer:
        trainer = Trainer(file=tmp_path / "cost.json")
        trainer.report(Leads(1, 0))
        trainer.report(ServerPriced(ONE, MachinePrice()))
        trainer.report(MemberJoined(ONE, 0, "a:1"))
        await trainer.live(MINUTE_S)
        await trainer.keeper.write()
        return trainer

    trainer = run(story(), 1)

    assert trainer.told == []
    assert trainer.keeper.text() == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("invited", "limit", "said"),
    [
        (True, 0.0, []),
        (False, 0.0, [UNCOUNTED]),
        (False, 2.0, []),
    ],
)
def test_what_is_not_counted_is_said_once(invited, limit, said):
    async def story() -> Trainer:
        trainer = Trainer(invited=invited, limit=limit)
        trainer.report(Leads(1, 0))
        trainer.report(ServerPriced(ONE, MachinePrice(2.0)))
        await trainer.live(MINUTE_S)
        return trainer

    assert [note.text for note in run(story(), 1).of(Note)] == said


@pytest.mark.parametrize("own", [0.0, 1.0])
def test_another_currency_is_said_once_and_counts_for_nothing(own):
    async def story() -> Trainer:
        trainer = Trainer(own=own)
        trainer.report(Leads(1, 0))
        for number in range(3):
            trainer.report(ServerPriced(Incarnation(b"1" * 32, number), MachinePrice(2.0, "CHF")))
        await trainer.live(MINUTE_S)
        return trainer

    (note,) = run(story(), 1).of(Note)

    assert note.text.startswith("prices in CHF are not counted, because this run counts in USD")


def test_a_budget_in_another_currency_than_the_runs_ends_nothing_and_is_said():
    async def story() -> Trainer:
        trainer = Trainer(budget=1.0, before=Spent("EUR", invited=50.0))
        trainer.report(Leads(2, 7))
        await trainer.live(MINUTE_S)
        return trainer

    trainer = run(story(), 1)

    assert not trainer.keeper.spent.is_set()
    (note,) = trainer.of(Note)
    assert note.text.endswith("neither this machine's price nor train.budget counts; set it to EUR")


@pytest.mark.parametrize(("saves", "notes"), [(True, 0), (False, 1)])
def test_machines_that_may_be_taken_away_ask_for_checkpoints(saves, notes):
    async def story() -> Trainer:
        trainer = Trainer(saves=saves)
        trainer.report(Leads(1, 0))
        for number in range(2):
            price = MachinePrice(0.0, "USD", spot=True)
            trainer.report(ServerPriced(Incarnation(b"1" * 32, number), price))
        return trainer

    said = run(story(), 1).of(Note)

    assert len(said) == notes
    assert all("set checkpoint.target" in note.text for note in said)


def test_a_standbys_machine_counts_and_is_kept_in_the_file(tmp_path):
    file = tmp_path / "cost.json"

    async def story() -> Trainer:
        trainer = Trainer(file=file)
        trainer.report(Leads(1, 0))
        trainer.report(StandbyPriced(b"s" * 32, MachinePrice(3.0)))
        await trainer.live(MINUTE_S)
        await trainer.keeper.write()
        return trainer

    run(story(), 1)

    kept = read_cost(file)
    assert kept is not None
    assert kept.trainer == pytest.approx(3.0 / 60, rel=0.01)


def test_a_folder_that_cannot_be_written_is_said_once_and_costs_nothing_else(tmp_path):
    async def story() -> Trainer:
        trainer = Trainer(own=1.0, file=tmp_path / "nothing" / "cost.json")
        trainer.report(Leads(1, 0))
        await trainer.live(120.0)
        return trainer

    trainer = run(story(), 1)

    (note,) = trainer.of(Note)
    assert "cannot be kept" in note.text
    assert trainer.of(CostSoFar)


def test_the_file_is_json_that_people_can_read(tmp_path):
    file = tmp_path / "cost.json"

    async def story() -> None:
        trainer = Trainer(own=1.0, file=file)
        trainer.report(Leads(1, 0))
        await trainer.live(60.0)

    run(story(), 1)

    assert json.loads(file.read_text())["currency"] == "USD"
