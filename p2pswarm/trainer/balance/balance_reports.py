"""Reports of the servers' capacities, and of the moves that the coordinator orders."""

from dataclasses import dataclass

from p2pswarm.plan.move_times import NO_MOVES, MoveTimes
from p2pswarm.plan.moves import Decision
from p2pswarm.progress.events import Report, gain_text, worth_text
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.membership import PrepareStage
from p2pswarm.trainer.balance.codec_choice import BoundaryRates
from p2pswarm.trainer.balance.move_preparation import PreparedMove, StopPreparing
from p2pswarm.trainer.reports.reports import short


@dataclass(frozen=True, slots=True)
class StageState:
    """The limits of one stage, as they were measured."""

    rate_per_s: float
    """Microbatches a second that its servers could do, with those that are on their way."""
    queue_s: float | None
    """Mean wait of a microbatch at its servers; None if nobody has measured it."""
    ready: int
    unmeasured: int
    """Servers that count as the usual one."""


@dataclass(frozen=True, slots=True)
class KnownServer:
    """The last that one server told of itself."""

    peer: bytes
    stage: int
    ready: bool
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class BalanceAsked(Report):
    """The rule was asked whether somebody should move."""

    decision: Decision
    stages: tuple[StageState, ...]
    floor: int
    """Ready servers that each stage keeps."""
    servers: tuple[KnownServer, ...] = ()
    """All that serve, in the order of their ids."""
    preparing: tuple[PreparedMove, ...] = ()
    """The moves that were being prepared when it was asked."""
    times: MoveTimes = NO_MOVES
    """Times of a move, by those that were made."""


@dataclass(frozen=True, slots=True)
class OrderedMove(Report):
    """A server moves to another stage."""

    incarnation: Incarnation
    source: int
    target: int
    gain: float
    """Of the whole plan, for everybody, as a share."""
    away_s: float
    planned: int
    """Moves of the whole plan."""

    @property
    def worth(self) -> str:
        """Return what it brings and what it costs."""
        return worth_text(self.gain, self.planned, self.away_s)

    @property
    def reason(self) -> str:
        """Return why its session ends."""
        return f"it moves to stage {self.target}: {self.worth}"


@dataclass(frozen=True, slots=True)
class OrderedPreparation(Report):
    """A server fetches another stage's weights, and serves its own meanwhile."""

    incarnation: Incarnation
    source: int
    target: int
    gain: float
    planned: int
    order: PrepareStage

    @property
    def text(self) -> str:
        """The move, and what the server does meanwhile."""
        goes = f"to move from stage {self.source} to {self.target} ({gain_text(self.gain)})"
        return f"{short(self.incarnation)} is {goes}: it fetches the weights while it serves on"


BalanceReport = BalanceAsked | BoundaryRates | OrderedMove | OrderedPreparation | StopPreparing
