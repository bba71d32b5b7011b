"""StepView: where the seconds of the newest step went, and the last stalls, as pages show them."""

from collections import deque
from collections.abc import Callable
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
    called,
)
from p2pswarm.progress.printable import nameless
from p2pswarm.progress.servers_view import NAME_CHARS, STAGES_MAX, plain_number, shown
from p2pswarm.progress.step_seconds import PARTS, StageTimes, chain_text, part_text

STALLS_KEPT = 20
WORD_CHARS, WHY_CHARS = 20, 500
CHAIN_MAX = 2 * STAGES_MAX + 8  # there and back, and what is before and behind
CHAIN_CHARS = 4_000


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

    def phases(self, name: Callable[[str], str] = nameless) -> dict[str, Any] | None:
        """The newest step's seconds, as JSON has them; None before there are any.

        `name`: what the owner of a server calls its machine; empty if that is not known.
        """
        newest = self._phases
        if newest is None:
            return None
        chain = newest.chain[:CHAIN_MAX]

        def named(server: str) -> str:
            return called(shown(server, NAME_CHARS), name(server))

        return {
            "step": newest.step,
            "took_s": plain_number(newest.took_s),
            "stages": [_stage(one) for one in newest.stages[:STAGES_MAX]],
            "chain": [
                {
                    "part": shown(one.part, WORD_CHARS),
                    "stage": one.stage,
                    "server": shown(one.server, NAME_CHARS),
                    "took_s": plain_number(one.took_s),
                    "text": shown(part_text(one, named)),
                }
                for one in chain
            ],
            "text": shown(chain_text(newest.took_s, chain, named), CHAIN_CHARS),
        }

    def waits(self) -> dict[str, Any]:
        """Who waits for whom, and the last stalls."""
        stalls = [
            {
                "at": at,
                "step": one.step,
                "for_s": plain_number(one.for_s),
                "usual_s": plain_number(one.usual_s),
                "cause": shown(one.cause, WORD_CHARS),
                "servers": [shown(server, NAME_CHARS) for server in one.servers[:16]],
                "stages": list(one.stages[:16]),
                "why": shown(one.why, WHY_CHARS),
                "text": shown(one.text, WHY_CHARS),
            }
            for at, one in self._stalls
        ]
        return {"now": stalls[-1] if stalls and self._open else None, "stalls": stalls}


def _stage(one: StageTimes) -> dict[str, Any]:
    """A stage's seconds, as JSON has them."""
    return {
        "servers": one.servers,
        **{name: plain_number(getattr(one, name)) for name in PARTS},
        "busiest": shown(one.busiest, NAME_CHARS),
        "doubtful": one.doubtful,
    }
