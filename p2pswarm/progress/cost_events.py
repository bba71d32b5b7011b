"""Events of money: what a run has cost so far, and how much of its budget that is.

Units:   money in one currency.
"""

from dataclasses import dataclass

from p2pswarm.progress.budget import money, per_million
from p2pswarm.progress.events import Event


@dataclass(frozen=True, slots=True)
class CostSoFar(Event):
    """What the run has cost by the prices that its machines have told."""

    currency: str
    """Of all sums, in three letters."""
    trainer: float
    """Of the trainers."""
    invited: float
    """Of servers that the run's owner has invited."""
    others: float
    """Of other servers, as far as it counts."""
    uncounted: float
    """What other servers have said beyond that."""
    joining: float
    """Of what counts, wasted while servers fetched their weights;"""
    idle: float
    """while servers that were ready computed nothing;"""
    again: float
    """for what was computed again;"""
    after_end: float
    """after the last step."""
    tokens: float
    """Of the steps that this bought."""
    per_hour: float
    """The present price."""
    budget: float = 0.0
    """0: there is none."""

    @property
    def total(self) -> float:
        """All that counts."""
        return self.trainer + self.invited + self.others

    @property
    def wasted(self) -> float:
        """What brought no step on."""
        return min(self.total, self.joining + self.idle + self.again + self.after_end)

    @property
    def text(self) -> str:
        """See `Report`."""
        so_far = f"cost: {money(self.total, self.currency)} so far"
        if self.budget:
            so_far += f" of {money(self.budget, self.currency)}"
        parts = [so_far, f"{money(self.per_hour, self.currency)} an hour"]
        paid = per_million(self.total, self.tokens)
        useful = per_million(self.total - self.wasted, self.tokens)
        if paid is not None and useful is not None:
            each = f"{money(paid, self.currency)} a million tokens"
            parts.append(f"{each}, {money(useful, self.currency)} without what is wasted")
        shares = {
            "joining": self.joining,
            "idle": self.idle,
            "computed again": self.again,
            "after the end": self.after_end,
        }
        total = self.total
        wasted = [f"{name} {part / total:.1%}" for name, part in shares.items() if part and total]
        if wasted:
            parts.append(f"wasted: {', '.join(wasted)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class BudgetReached(Event):
    """So much of the budget is spent that its owner is told, or all of it."""

    total: float
    """What the run has cost so far."""
    budget: float
    """What it may cost."""
    currency: str
    """Of both, in three letters."""
    per_hour: float
    """The present price."""
    over: bool
    """The run is saved and ends."""

    @property
    def text(self) -> str:
        """See `Report`."""
        budget, total = money(self.budget, self.currency), money(self.total, self.currency)
        if self.over:
            return (
                f"the budget of {budget} is spent ({total}): the run is saved and ends; to go on, "
                "raise train.budget and start it with --resume"
            )
        left = f"{total} of the budget of {budget} are spent"
        if not self.per_hour:
            return left
        hours = (self.budget - self.total) / self.per_hour
        lasts = f"{hours:.1f} h" if hours >= 1.0 else f"{60.0 * hours:.1f} min"
        return f"{left}; at {money(self.per_hour, self.currency)} an hour it lasts {lasts}"
