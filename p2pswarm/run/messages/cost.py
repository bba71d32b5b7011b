"""What the machines of a run cost: the price that one names, and the sums that trainers keep.

A price is what an owner says. It is bounded and shown as it was told, and no plan depends on it. So
sums of money are in no record of the chain: a trainer tells them to its standbys, and writes them
into its own folder and into the manifests that it signs.

Units:   money in the sums' own currency.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, message
from p2pswarm.settings.limits import PRICE_PER_HOUR_MAX

CURRENCY = re.compile("[A-Z]{3}")
CURRENCY_CHARS = 3
AMOUNT_MAX = 1e12  # 4,096 machines at the highest price for 30 years
TOKENS_MAX = 1e18  # beyond any run

Currency = Annotated[str, Size(CURRENCY_CHARS)]
PricePerHour = Annotated[float, Range(0.0, PRICE_PER_HOUR_MAX)]
Amount = Annotated[float, Range(0.0, AMOUNT_MAX)]


def check_currency(currency: str) -> None:
    """Raise ValueError unless it is three capital letters: people's terminals show it."""
    if not CURRENCY.fullmatch(currency):
        raise ValueError("a currency that is not three capital letters")


@dataclass(frozen=True, slots=True)
class MachinePrice(Message):
    """The price of a machine, as its owner told it."""

    per_hour: PricePerHour = 0.0
    """0: it is the owner's own, or it is not told."""
    currency: Currency = "USD"
    spot: bool = False
    """It may be taken away at any time."""

    def __post_init__(self) -> None:
        check_currency(self.currency)

    @property
    def told(self) -> "MachinePrice | None":
        """What a message says of it; None where there is nothing to say."""
        return self if self.per_hour or self.spot else None


NO_PRICE = MachinePrice()


@message(142)
@dataclass(frozen=True, slots=True)
class Spent(Message):
    """The money that a run has cost; a coordinator tells it to a trainer that stands by."""

    currency: Currency
    trainer: Amount = 0.0
    """Of the trainers that led."""
    invited: Amount = 0.0
    """Of servers that the run's owner has invited."""
    others: Amount = 0.0
    """Of other servers, as far as it counts (`train.price_limit`)."""
    uncounted: Amount = 0.0
    """What other servers have said beyond that."""
    joining: Amount = 0.0
    """Of what counts: while servers fetched their weights."""
    idle: Amount = 0.0
    """While servers that were ready computed nothing."""
    again: Amount = 0.0
    """For what was computed again."""
    after_end: Amount = 0.0
    """After the last step."""
    tokens: Annotated[float, Range(0.0, TOKENS_MAX)] = 0.0
    """Of committed steps meanwhile."""
    per_hour: Amount = 0.0
    """The present price of all that counts."""

    def __post_init__(self) -> None:
        check_currency(self.currency)

    @property
    def total(self) -> float:
        """All that counts."""
        return self.trainer + self.invited + self.others

    @property
    def wasted(self) -> float:
        """What brought no step on."""
        return min(self.total, self.joining + self.idle + self.again + self.after_end)

    @property
    def nothing(self) -> bool:
        """True if no price was ever told."""
        return not (self.total or self.uncounted or self.per_hour)
