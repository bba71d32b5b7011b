"""StepView: where the seconds of the newest step went, and the last stalls, as pages show them."""

from collections import deque
from dataclasses import asdict
from typing import Any

from p2pswarm.progress.events import (
    Ended,
    Event,
    LeadershipTaken,
    Phases,
    Stalled,
    StallEnded,
    Started,
    Stepped,
)
from p2pswarm.progress.printable import printable
from p2pswarm.progress.step_seconds import chain_text

STALLS_KEPT = 20
WHY_CHARS = 500


class StepView:
    """The newest phases and stalls of a run, as pages show them."""

    def __init__(self) -> None:
        self._phases: Phases | None = None
        self._stalls: deque[tuple[float, Stalled]] = deque(maxlen=STALLS_KEPT)
        self._open = False

    def on_event(self, event: Event, at: float) -> None:
        """Take an event of the run."""
        match event:
            case Phases():
                self._phases = event
            case Stalled():
                self._stalls.append((at, event))
                self._open = True
            case StallEnded() | Stepped() | Ended() | Started() | LeadershipTaken():
                self._open = False  # also if the trainer that told of it was killed meanwhile

    def phases(self) -> dict[str, Any] | None:
        """The newest step's seconds, as JSON has them; None before there are any."""
        newest = self._phases
        if newest is None:
            return None
        return {
            "step": newest.step,
            "took_s": newest.took_s,
            "stages": [asdict(one) for one in newest.stages],
            "chain": [
                {**asdict(one), "part": printable(one.part[:20]), "server": printable(one.server)}
                for one in newest.chain
            ],
            "text": chain_text(newest.took_s, newest.chain),
        }

    def waits(self) -> dict[str, Any]:
        """Who waits for whom, and the last stalls."""
        stalls = [
            {
                "at": at,
                "step": one.step,
                "for_s": one.for_s,
                "usual_s": one.usual_s,
                "cause": printable(one.cause[:20]),
                "servers": [printable(server[:64]) for server in one.servers[:16]],
                "stages": list(one.stages[:16]),
                "why": printable(one.why[:WHY_CHARS]),
                "text": printable(one.text[:WHY_CHARS]),
            }
            for at, one in self._stalls
        ]
        return {"now": stalls[-1] if stalls and self._open else None, "stalls": stalls}
