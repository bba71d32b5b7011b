"""Judgement: what the responder thinks of the initiator's candidates, which come in two offers.

The relay is asked about each candidate once.

Units:   none.
Shapes:  two offers, CANDIDATES_MAX candidates each.
Errors:  none.
"""

from collections.abc import Collection

from p2pswarm.base.ids import Address
from p2pswarm.reach.punch.candidates import DialTrust, dialled
from p2pswarm.reach.punch.messages import Offer, PunchCandidate


class Judgement:
    """The candidates of one attempt, and which of them the relay has seen."""

    def __init__(self, trust: DialTrust) -> None:
        self._trust = trust
        self._judged: dict[PunchCandidate, bool] = {}

    def unjudged(self, offer: Offer) -> tuple[PunchCandidate, ...]:
        """What is new in an offer."""
        return tuple(each for each in offer.candidates if each not in self._judged)

    def judge(
        self, new: Collection[PunchCandidate], vouched: Collection[PunchCandidate]
    ) -> list[Address]:
        """Note for which of these the relay vouches; returns all that may be dialled."""
        self._judged.update({each: each in vouched for each in new})
        seen = {each for each, was_seen in self._judged.items() if was_seen}
        latest = list(self._judged)[::-1]  # of more than enough, those of the last word
        return dialled(latest, self._trust, seen)
