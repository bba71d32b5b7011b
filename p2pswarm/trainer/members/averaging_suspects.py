"""Who spoils a stage's averaging: members are left out of it, one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from p2pswarm.base.recent_items import RecentItems
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import MEMBERS_MAX


@dataclass(slots=True)
class _Exclusion:
    """What was tried in one stage, in one step."""

    out: list[bytes] = field(default_factory=list)
    """The members that were left out, in order."""
    others_back: bool = False
    """The last member is left out alone: there is nothing more to try."""

    @property
    def now_out(self) -> list[bytes]:
        """Return who is out at present."""
        return self.out[-1:] if self.others_back else self.out


class AveragingSuspects:
    """The members that may keep their stage from averaging, or make its gradient no number.

    Whoever averages a sum of NaN makes the whole stage's gradient NaN, and whoever sends nothing
    holds all others up. Nobody can tell from the outcome who it was, and a stranger of an open run
    must not end it so. So members are left out, those first that are trusted least, until it
    succeeds: then it was the one that was left out last. If the last member alone fails, all others
    come back without it. If that fails too, it is none of them, but the training or the links.
    """

    def __init__(self) -> None:
        self._found: RecentItems[bytes, int] = RecentItems(MEMBERS_MAX)
        """How often it was each."""
        self.trials: dict[int, _Exclusion] = {}
        """By stages; empty as long as each averaging of the step succeeds."""

    def next(
        self, stage: int, group: Sequence[Incarnation], proven: Callable[[bytes], bool]
    ) -> Incarnation | None:
        """Return whom to leave out, now that a stage has not averaged; None: it is nobody.

        `group`: its members; `proven`: whether a peer was in a decided step.
        """
        trial = self.trials.get(stage, _Exclusion())
        alone = len(group) == 1
        if trial.others_back or (alone and not trial.out):
            return None
        self.trials[stage] = trial

        def least_trusted(one: Incarnation) -> tuple[int, bool, int]:
            return self._found.get(one.peer, 0), not proven(one.peer), one.number

        suspect = max(group, key=least_trusted)
        trial.others_back = alone
        trial.out.append(suspect.peer)
        return suspect

    def known(self, group: Sequence[Incarnation], proven: Callable[[bytes], bool]) -> bool:
        """Return whether one of a group is trusted less than others, or some are out already."""
        return bool(self.trials) or any(
            one.peer in self._found or not proven(one.peer) for one in group
        )

    def left_out(self, peer: bytes) -> bool:
        """Return whether a peer is to have no part in this step, if others can do it."""
        return any(peer in trial.now_out for trial in self.trials.values())

    def cleared(self, stage: int) -> list[bytes]:
        """Return whom to take back at once, because the last member is left out instead."""
        trial = self.trials[stage]
        return trial.out[:-1] if trial.others_back else []

    def on_decision(self) -> list[bytes]:
        """A step is decided: return who was left out for nothing."""
        innocent: list[bytes] = []
        for trial in self.trials.values():
            *others, last = trial.out
            self._found[last] = self._found.get(last, 0) + 1
            innocent += others
        self.trials.clear()
        return innocent
