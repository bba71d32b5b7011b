"""SpendingLimit: what a run may cost, and when its owner is told; and money as people read it.

Units:   money in one currency.
"""

from enum import Enum

WARN_SHARE = 0.8
MEGA = 1e6


class BudgetMark(Enum):
    """How much of a budget is spent."""

    NEAR = "near"
    """As much as its owner is warned at."""
    SPENT = "spent"
    """All of it: the run is saved and ends."""


class SpendingLimit:
    """Told what a run has cost; each mark is told once."""

    def __init__(self, limit: float) -> None:
        """`limit`: 0 for none."""
        self.limit = limit
        self._told: list[BudgetMark] = []

    def on_cost(self, total: float) -> BudgetMark | None:
        """Return the mark that is reached now, if that is news."""
        if not self.limit or total < WARN_SHARE * self.limit:
            return None
        mark = BudgetMark.SPENT if total >= self.limit else BudgetMark.NEAR
        if mark in self._told or BudgetMark.SPENT in self._told:
            return None
        self._told.append(mark)
        return mark


def money(amount: float, currency: str) -> str:
    """An amount as people write it: $31.20, or 31.20 EUR; below a cent with more digits."""
    digits = 2 if not 0 < abs(amount) < 0.1 else 4  # noqa: PLR2004 - cents, and a hundredth of one
    number = f"{amount:,.{digits}f}"
    return f"${number}" if currency == "USD" else f"{number} {currency}"


def per_million(amount: float, tokens: float) -> float | None:
    """Return what a million tokens cost; None before there are any."""
    return amount / tokens * MEGA if tokens > 0 else None
