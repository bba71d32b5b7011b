"""How the run of a trainer stands: the newest of its events, as an answer to `AskStatus`.

Units:   `now_s` seconds on the caller's clock.
Errors:  NotServing for another run.
"""

import math
from collections import Counter
from collections.abc import Sequence

from p2pswarm.base.errors import NotServing
from p2pswarm.net.guard.bans import Ban
from p2pswarm.progress.events import (
    Checkpointed,
    Ended,
    Event,
    HeldOut,
    MicrobatchCounts,
    Peers,
    Stepped,
    Waiting,
)
from p2pswarm.run.messages.status import (
    BANS_TOLD_MAX,
    AskStatus,
    BanStatus,
    RunStatus,
    StageStatus,
)
from p2pswarm.run.messages.types import REASON_CHARS, PathCounts


class LatestStatus:
    """What a trainer says about its run when it is asked."""

    def __init__(self, run: bytes, stages: int, done: int = 0) -> None:
        """`done`: the steps that were done before."""
        self._run = run
        self._stages = stages
        self._first = done
        self._stepped: Stepped | None = None
        self._committed_s = math.nan
        self._held_out: float | None = None
        self._peers: Peers = Peers(())
        self._waiting: tuple[int, ...] = ()
        self._ended: Ended | None = None
        self._saved: Checkpointed | None = None
        self._saved_s = math.nan

    def on_event(self, event: Event, now_s: float) -> None:
        """Take an event of the run; only the newest of a kind is kept."""
        match event:
            case Stepped():
                self._stepped, self._committed_s = event, now_s
            case HeldOut():
                self._held_out = event.nats_per_token
            case Peers():
                self._peers = event
            case Waiting():
                self._waiting = event.stages
            case Checkpointed():
                self._saved, self._saved_s = event, now_s
            case Ended():
                self._ended = event
            case _:
                pass  # notes are for people who watch

    def answer(self, question: AskStatus, now_s: float, bans: Sequence[Ban] = ()) -> RunStatus:
        """The run as it stands at `now_s`; `bans`: those of its trainer's node, longest first."""
        if question.run != self._run:
            raise NotServing("that run is not trained here; look up the runs again")
        step, end, saved = self._stepped, self._ended, self._saved
        newest = end or step
        counts = newest.counts if newest else MicrobatchCounts(0, 0, 0)
        return RunStatus(
            done=step.step if step else self._first,
            loss=_finite(step.loss) if step else None,
            held_out=_finite(self._held_out),
            tokens_per_s=step.tokens_per_s if step else 0.0,
            committed_ago_s=max(0.0, now_s - self._committed_s) if step else None,
            asked=counts.asked,
            counted=counts.counted,
            replayed=counts.replayed,
            waiting=self._waiting,
            stages=self._servers(),
            ended=end.reason[:REASON_CHARS] if end else "",
            saved=saved.step if saved else None,
            saved_ago_s=max(0.0, now_s - self._saved_s) if saved else None,
            bans=tuple(
                BanStatus(ban.peer, ban.offence.value, ban.left_s(now_s))
                for ban in bans[:BANS_TOLD_MAX]
            ),
        )

    def _servers(self) -> tuple[StageStatus, ...]:
        count = Counter((peer.stage, peer.ready) for peer in self._peers.peers)
        return tuple(
            StageStatus(count[stage, True], count[stage, False], self._links(stage))
            for stage in range(self._stages)
        )

    def _links(self, stage: int) -> PathCounts:
        ours = [peer for peer in self._peers.peers if peer.stage == stage]
        return PathCounts(
            sum(peer.direct for peer in ours),
            sum(peer.mapped for peer in ours),
            sum(peer.punched for peer in ours),
            sum(peer.relayed for peer in ours),
        )


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None
