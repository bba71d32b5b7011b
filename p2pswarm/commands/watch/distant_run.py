"""DistantRun: what a run's trainer answers from afar, as the events that pages are drawn from.

A trainer answers who asks; it sends nobody events. So steps between two answers are not seen, and
of a server that is gone only that it is.

Units:   seconds; rates in tokens a second.
"""

import dataclasses
import math
from collections.abc import Sequence

from p2pswarm.base.ids import PeerId
from p2pswarm.node.progress.common_events import MEASURED
from p2pswarm.progress.cost_events import CostSoFar
from p2pswarm.progress.events import (
    Checkpointed,
    Departure,
    Ended,
    Event,
    HeldOut,
    Left,
    MicrobatchCounts,
    PeerLine,
    Peers,
    Started,
    Stepped,
    Waiting,
)
from p2pswarm.run.messages.balance import ServerCapacity
from p2pswarm.run.messages.status import RunStatus

ASK_EVERY_S = 2.0  # a trainer answers thousands a second; people see no more
UNNAMED = "server "  # and its number: no peer id has a space
UNNAMED_MAX = 64  # of a stage: a page has no use for more rows without a name
NOT_LISTED = "its trainer lists it no more"


class DistantRun:
    """Compares each answer with the one before."""

    def __init__(self) -> None:
        self._before: RunStatus | None = None
        self._seconds = -ASK_EVERY_S
        """Since the first answer."""
        self._servers: dict[str, int] = {}
        """The stages of those that were listed last."""

    def on_answer(self, status: RunStatus, servers: Sequence[ServerCapacity]) -> list[Event]:
        """Return what is new."""
        before, self._before = self._before, status
        self._seconds += ASK_EVERY_S
        events: list[Event] = []
        counts = MicrobatchCounts(status.asked, status.counted, status.replayed)
        if before is None and status.done:
            events.append(Started(0))
        if status.waiting != (before.waiting if before else ()):
            events.append(Waiting(status.waiting))
        events += self._listed(tuple(map(_line, servers)) or _unnamed(status))
        if status.loss is not None and (before is None or status.done > before.done):
            took_s = _took_s(before, status)
            figures = status.done, status.loss, status.tokens_per_s, 0.0, 0.0, counts, took_s
            events.append(Stepped(*figures, seconds=self._seconds))
        if status.held_out is not None and (before is None or status.held_out != before.held_out):
            events.append(HeldOut(status.done, status.held_out))
        if status.spent is not None and (before is None or status.spent != before.spent):
            events.append(CostSoFar(**dataclasses.asdict(status.spent), seconds=self._seconds))
        if status.saved is not None and (before is None or status.saved != before.saved):
            events.append(Checkpointed(status.saved, "where its trainer saves", 0.0))
        if status.ended and not (before and before.ended):
            events.append(Ended(status.done, status.ended, False, status.tokens_per_s, counts))
        return events

    def _listed(self, lines: tuple[PeerLine, ...]) -> list[Event]:
        now = {line.peer: line.stage for line in lines}
        gone = [
            Left(peer, stage, Departure.LOST, NOT_LISTED, 0)
            for peer, stage in self._servers.items()
            if peer not in now and not peer.startswith(UNNAMED)
        ]
        self._servers = now
        return [*gone, Peers(lines)]


def _line(one: ServerCapacity) -> PeerLine:
    figures = {name: getattr(one.capacity, name) for name in MEASURED}
    took_s = (figures["forward_s"] or 0.0) + (figures["backward_s"] or 0.0)
    rate_per_s = 1.0 / took_s if took_s > 0 else 0.0
    return PeerLine(PeerId(one.peer).short, one.stage, one.ready, 0, rate_per_s, **figures)


def _unnamed(status: RunStatus) -> tuple[PeerLine, ...]:
    """Servers of which the trainer has told the number, and not yet what they measure."""
    return tuple(
        PeerLine(f"{UNNAMED}{number + 1} of stage {stage}", stage, number < one.ready, 0, 0.0)
        for stage, one in enumerate(status.stages)
        for number in range(min(one.ready + one.joining, UNNAMED_MAX))
    )


def _took_s(before: RunStatus | None, status: RunStatus) -> float:
    """What a step took, between two answers; 0: not known."""
    if before is None or before.committed_ago_s is None or status.committed_ago_s is None:
        return 0.0
    steps = status.done - before.done
    span_s = ASK_EVERY_S + before.committed_ago_s - status.committed_ago_s
    return span_s / steps if steps > 0 and math.isfinite(span_s) and span_s > 0 else 0.0
