"""What members tell of their work on a step's microbatches, and what the coordinator makes of it.

Units:   `now_s` seconds on the caller's clock; microbatches by their global number.
Errors:  none; a member that breaks the protocol is evicted with the reason.
"""

from abc import ABC, abstractmethod

from p2pswarm.run.messages.membership import Load
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Handed, Sketch, Undelivered
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance import (
    Balance,
)
from p2pswarm.trainer.balance.stage_coverage import Departures
from p2pswarm.trainer.coordinator.outputs import Action
from p2pswarm.trainer.members.blame import Blame
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.ledger import CountResult
from p2pswarm.trainer.step.step import Step
from p2pswarm.trainer.step.window import LaunchPace


class StepNotes(ABC):
    """The part of the coordinator that hears of microbatches under way."""

    members: Membership
    _config: RunConfig
    _step: Step
    _balance: Balance
    _blame: Blame
    _departures: Departures
    _pace: LaunchPace
    _actions: list[Action]

    def loaded(self, incarnation: Incarnation, note: Load) -> None:
        """A member reports how busy it is."""
        if member := self.members.alive(incarnation):
            self._balance.loaded(member, note)
            self._pace.recomputed(incarnation, note.recomputed)
            self._actions.append(act.Loaded(incarnation, member.stage, note))

    def handed(self, to: Incarnation, note: Handed, now_s: float) -> None:
        """A server, or the trainer itself, handed a microbatch to the member `to`."""
        self._step.handed(to, note, alive=self.members.alive(to) is not None)
        self._advance(now_s)

    def counted(self, incarnation: Incarnation, note: Counted, now_s: float) -> None:
        """A server has a microbatch in its sum, or has passed its gradient on."""
        if member := self.members.alive(incarnation):
            result = self._step.counted(incarnation, member.stage, note, now_s)
            self._blame.counted(incarnation, self._step.path(note.microbatch))
            self._evict_on_clash(incarnation, result, now_s)
        self._advance(now_s)

    def sketched(self, by: Incarnation, note: Sketch, now_s: float) -> None:
        """A server tells what it took and gave, in a run with spot checks."""
        if (member := self.members.alive(by)) and member.ready:
            self._step.sketched(by, member.stage, note)
        self._advance(now_s)

    def evaluated(self, by: Incarnation, note: Evaluated, now_s: float) -> None:
        """The last stage has the loss of a held-out batch."""
        member = self.members.alive(by)
        if member is not None and member.stage == self._config.stages - 1:
            self._step.evaluated(note, now_s)
        self._advance(now_s)

    def undelivered(self, note: Undelivered, now_s: float, by: Incarnation | None = None) -> None:
        """An attempt got stuck: a push failed, or a server cannot compute it.

        `by`: the member that says so, which was handed nothing before it was ready; None: the
        trainer itself.
        """
        member = self.members.alive(by) if by is not None else None
        known = by is None or (member is not None and member.ready)
        if known and (failed := self._step.undelivered(note, by)):
            self._actions += self._blame.attempt_failed(failed, now_s)
        self._advance(now_s)

    def fenced(self, incarnation: Incarnation, counted: tuple[int, ...], now_s: float) -> None:
        """A member has promised to count nothing more of the fenced attempts."""
        if member := self.members.alive(incarnation):
            result = self._step.fenced(incarnation, member.stage, counted, now_s)
            self._evict_on_clash(incarnation, result, now_s)
        self._advance(now_s)

    def will_leave(self, by: Incarnation, grace_s: float, now_s: float) -> None:
        """A member was asked to leave, and can stay for `grace_s` at most."""
        self._departures.asked(by, now_s + grace_s)
        self._advance(now_s)

    def _evict_on_clash(
        self, incarnation: Incarnation, result: CountResult | None, now_s: float
    ) -> None:
        """Evict the later of two living members that have counted one microbatch."""
        if result is CountResult.CLASH:
            self._evict(incarnation, "it counted a microbatch that another had counted", now_s)

    @abstractmethod
    def _evict(self, incarnation: Incarnation, reason: str, now_s: float) -> None:
        """End an incarnation, if it is alive."""

    @abstractmethod
    def _advance(self, now_s: float) -> None:
        """Do all that can be done now."""
