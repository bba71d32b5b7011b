"""RunHistory: the events of a run of minutes, collected for a plot or a summary.

Units:   seconds since the first step; nats per byte.
"""

from dataclasses import dataclass

from p2pswarm.progress.events import (
    Ended,
    Event,
    HeldOut,
    MicrobatchCounts,
    PeerLine,
    Peers,
    Relocated,
    Started,
    Stepped,
    Waiting,
)


@dataclass(frozen=True, slots=True)
class Kill:
    """A server was killed on purpose."""

    seconds: float
    step: int


class RunHistory:
    """All events of a run so far."""

    def __init__(self) -> None:
        self.steps: list[Stepped] = []
        self.held_out: list[HeldOut] = []
        self.peers: tuple[PeerLine, ...] = ()
        self.kills: list[Kill] = []
        self.moves: list[Relocated] = []
        self.waiting: Waiting | None = None
        self.started: Started | None = None
        self.ended: Ended | None = None

    def on_event(self, event: Event) -> None:
        """Add one event."""
        match event:
            case Stepped():
                self.steps.append(event)
            case HeldOut():
                self.held_out.append(event)
            case Peers():
                self.peers = event.peers
            case Relocated():
                self.moves.append(event)
            case Waiting():
                self.waiting = event if event.stages else None
            case Started():
                self.started, self.waiting = event, None
            case Ended():
                self.ended = event

    def on_kill(self) -> None:
        """Note that a server was killed just now."""
        self.kills.append(Kill(self.seconds, self.step))

    @property
    def step(self) -> int:
        """The number of steps done."""
        return self.steps[-1].step if self.steps else 0

    @property
    def seconds(self) -> float:
        """The time of the last step."""
        return self.steps[-1].seconds if self.steps else 0.0

    @property
    def counts(self) -> MicrobatchCounts:
        """The numbers of microbatches so far."""
        if self.ended:
            return self.ended.counts
        return self.steps[-1].counts if self.steps else MicrobatchCounts(0, 0, 0)

    def ready(self, stage: int) -> tuple[PeerLine, ...]:
        """The servers of a stage that are ready for microbatches."""
        return tuple(peer for peer in self.peers if peer.stage == stage and peer.ready)

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages that have a server, in order."""
        return tuple(sorted({peer.stage for peer in self.peers}))
