"""CardExchange: which peers are to be told our card, and whose cards we look at.

A link begins with the cards of both sides. Whoever's card changes tells it to the peers that it has
links to, a link at most once in `TELL_EVERY_S`: the newest card at that time. A peer that has kept
a newer card of ours than the one we told it, from an earlier process of ours, tells us so.

To look at a card costs a tenth of a millisecond, so what comes faster than an honest peer sends is
not looked at: it gets in by a later card, or with the next link.

Units:   seconds on the caller's monotonic clock.
Shapes:  an entry for each link.
Errors:  none.
Source:  docs/addresses.md.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from p2pswarm.base.allowance import Allowance

TELL_EVERY_S = 1.0  # a peer's address changes far more rarely; a node that starts learns several
HEAR_EVERY_S = 1.0  # as often as honest peers tell theirs
HEAR_BURST = 8  # clocks and networks bunch messages up
HEAR_ALL_EVERY_S = 0.01  # cards of all peers together: 1 % to 4 % of a processor
HEAR_ALL_BURST = 1024  # as many as there are links: all peers may move at once

L = TypeVar("L", bound=Hashable)


@dataclass(slots=True)
class _Exchanged:
    """What a link has carried."""

    ours: bytes
    """Our card, as the peer has it."""
    told_s: float = float("-inf")
    heard: Allowance = field(default_factory=lambda: Allowance(HEAR_EVERY_S, HEAR_BURST))


class CardExchange(Generic[L]):
    """The cards that links have carried."""

    def __init__(self) -> None:
        self._links: dict[L, _Exchanged] = {}
        self._heard = Allowance(HEAR_ALL_EVERY_S, HEAR_ALL_BURST)

    def __len__(self) -> int:
        return len(self._links)

    def up(self, link: L, introduced: bytes) -> None:
        """Note a link, and the card with which we introduced ourselves on it."""
        self._links[link] = _Exchanged(introduced)

    def ended(self, link: L) -> None:
        """Forget a link."""
        self._links.pop(link, None)

    def to_tell(self, ours: bytes, now_s: float) -> list[L]:
        """The links to tell our card on now."""
        due: list[L] = []
        for link, exchanged in self._links.items():
            # The sum is the deadline's, to the last bit: else it is due and nothing is told.
            if exchanged.ours != ours and now_s >= exchanged.told_s + TELL_EVERY_S:
                exchanged.ours, exchanged.told_s = ours, now_s
                due.append(link)
        return due

    def next_deadline_s(self, ours: bytes) -> float | None:
        """When to call `to_tell` again; None if every peer has our card."""
        waiting = (each.told_s for each in self._links.values() if each.ours != ours)
        return min((told_s + TELL_EVERY_S for told_s in waiting), default=None)

    def may_hear(self, link: L, now_s: float) -> bool:
        """Whether to look at a card that came over a link."""
        exchanged = self._links.get(link)
        return exchanged is not None and exchanged.heard.take(now_s) and self._heard.take(now_s)
