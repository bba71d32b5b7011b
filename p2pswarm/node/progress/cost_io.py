"""Keeps account of what a run costs while its trainer works: events, the file, the budget."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

from p2pswarm.base.errors import one_line
from p2pswarm.node.progress.cost_file import write_cost
from p2pswarm.progress.budget import BudgetMark, SpendingLimit, money
from p2pswarm.progress.cost_events import BudgetReached, CostSoFar
from p2pswarm.progress.events import Event, Note, Report
from p2pswarm.run.messages.cost import Spent
from p2pswarm.trainer.members.run_cost import RunCost
from p2pswarm.trainer.reports.cost import ServerPriced, StandbyPriced
from p2pswarm.trainer.reports.leadership import Leads, SteppedDown
from p2pswarm.trainer.reports.reports import (
    Loaded,
    MemberJoined,
    MemberLost,
    MemberReady,
    Replayed,
    RunFinished,
    StepDone,
    WentBack,
)

LOOK_S = 1.0  # what a run costs in a second is no news
TELL_S = 30.0  # an event for pages and logs
WRITE_S = 10.0  # a process that is killed forgets no more

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class CostPlan:
    """What a trainer's settings say of money."""

    budget: float
    file: Path | None
    """Where the sums are kept; None: with checkpoints alone."""
    saves: bool
    """The run has checkpoints."""


class CostKeeper:
    """Feeds `RunCost` with a trainer's reports, and tells what comes of it."""

    def __init__(
        self,
        cost: RunCost,
        plan: CostPlan,
        tell: Callable[[Event], None],
    ) -> None:
        self.cost = cost
        self.spent = asyncio.Event()
        """Set when the budget is spent while this trainer leads."""
        self.reason = ""
        """Why the run ends then."""
        self._plan = plan
        self.tell = tell
        """What this trainer tells its events to."""
        self._budget = SpendingLimit(plan.budget)
        self._clock = asyncio.get_running_loop().time
        self._leads = False
        self._tell_s = self._write_s = 0.0
        self._remarked: set[str] = set()

    def on_report(self, report: Report, invited: Callable[[bytes], bool]) -> None:
        """Take a report of the trainer; `invited`: whether the run's owner has invited a peer."""
        now_s, cost = self._clock(), self.cost
        match report:
            case Leads():
                self._leads = True
                cost.on_lead(now_s)
            case SteppedDown():
                self._leads = False
                cost.on_step_down(now_s)
            case ServerPriced(one, price):
                cost.on_price(one, price, now_s, invited=invited(one.peer))
                self._remark_spot()
            case StandbyPriced(peer, price):
                cost.on_standby(peer, price, now_s)
            case MemberJoined() | MemberReady() | MemberLost() | Loaded():
                cost.on_member(report, now_s)
            case StepDone() | Replayed() | WentBack():
                cost.on_step(report, now_s)
            case RunFinished():
                cost.on_step(report, now_s)
                self._look(now_s, last=True)

    async def run(self) -> None:
        """Look at the sums from time to time; until cancelled."""
        while True:
            now_s = self._clock()
            spent = self._look(now_s)
            if spent is not None and now_s >= self._write_s:
                self._write_s = now_s + WRITE_S
                await self.write(spent)
            await asyncio.sleep(LOOK_S)

    async def write(self, spent: Spent | None = None) -> None:
        """Keep the sums in the folder of `state`, if there is one and there is something."""
        path, spent = self._plan.file, spent or self.cost.spent(self._clock())
        if path is None or spent.nothing:
            return
        try:
            await asyncio.to_thread(write_cost, path, spent)
        except OSError as error:
            self._remark(f"what the run costs cannot be kept in {path}: {one_line(error)}")

    def text(self) -> str:
        """What the run has cost, for people; empty if no price was told."""
        spent = self.cost.spent(self._clock())
        return "" if spent.nothing else self._event(spent).text

    def _look(self, now_s: float, *, last: bool = False) -> Spent | None:
        """Tell what is news; returns the sums if this trainer leads and there are prices."""
        if not self._leads:
            return None
        spent = self.cost.spent(now_s)
        self._tell_remarks(spent)  # a price that is not counted is told, though it is the only one
        if spent.nothing:
            return None
        if last or now_s >= self._tell_s:
            self._tell_s = now_s + TELL_S
            self.tell(self._event(spent))
        mark = None
        if spent.currency == self.cost.terms.currency:
            mark = self._budget.on_cost(spent.total)
        if mark is not None and not last:
            over = mark is BudgetMark.SPENT
            budget, currency = self._plan.budget, spent.currency
            news = BudgetReached(spent.total, budget, currency, spent.per_hour, over)
            self.tell(news)
            if over:
                self.reason = f"the budget of {money(budget, currency)} is spent"
                self.spent.set()
        return spent

    def _event(self, spent: Spent) -> CostSoFar:
        return CostSoFar(**dataclasses.asdict(spent), budget=self._plan.budget)

    def _tell_remarks(self, spent: Spent) -> None:
        """Say once what the sums leave out, and what a machine that may go asks for."""
        cost, limit = self.cost, self.cost.terms.price_limit
        told = cost.told_per_hour
        if told > limit:
            self._remark(
                f"servers that you have not invited cost {money(told, spent.currency)} an hour, as "
                f"they say, of which {money(limit, spent.currency)} count: invite yours (p2pswarm "
                "invite), or set train.price_limit to what they cost",
                "uncounted",
            )
        if spent.currency != cost.terms.currency:
            self._remark(
                f"this run counts in {spent.currency}, and train.currency is {cost.terms.currency} "
                "here: neither this machine's price nor train.budget counts; set it to "
                f"{spent.currency}",
                "other currency",
            )
        for currency in cost.foreign:
            self._remark(
                f"prices in {currency} are not counted, because this run counts in {spent.currency}"
                ": set serve.currency and serve.price_per_hour there",
                currency,
            )

    def _remark_spot(self) -> None:
        """Say once that machines that may be taken away train a run that is never saved."""
        if self.cost.spot and not self._plan.saves:
            self._remark(
                "servers say that they may be taken away (serve.spot), and this run is never saved:"
                " set checkpoint.target",
                "spot",
            )

    def _remark(self, text: str, about: str = "") -> None:
        if (about or text) not in self._remarked and len(self._remarked) < REMARKS_MAX:
            self._remarked.add(about or text)
            self.tell(Note(text))


REMARKS_MAX = 16
