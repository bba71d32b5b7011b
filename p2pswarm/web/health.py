"""NodeHealth: whether a node's loop turns, and whether it does its work.

A probe that restarts nodes asks whether the loop turns. It never asks whether training goes on: a
run that stands still for one machine must not restart the twenty others.

Units:   `now_s` seconds on a clock that goes on while the loop stands still.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

STANDS_STILL_S = 10.0  # no work of ours keeps the loop so long; a stopped process does


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """What a probe learns."""

    ok: bool
    why: str
    """In plain words, and without a name or an address: no token is asked for it."""

    def to_json(self) -> str:
        """The answer as a line."""
        return json.dumps({"ok": self.ok, "why": self.why}, separators=(",", ":"))

    @property
    def status(self) -> int:
        """The HTTP status that probes read."""
        return 200 if self.ok else 503


class NodeHealth:
    """What a node knows of its own state."""

    def __init__(self, role: str, now_s: float) -> None:
        self.role = role
        self._turn_s = now_s
        self.of_role: Callable[[], HealthAnswer] = lambda: HealthAnswer(
            ok=False, why=f"a {role} that joins the swarm"
        )
        """Whether the node does its work: asked when a probe comes."""

    def on_join(self, *, has_role: bool) -> None:
        """The node is in the swarm. A role, if it has one, says itself when it does its work."""
        why = "in the swarm, and its role begins" if has_role else "in the swarm"
        self.of_role = lambda: HealthAnswer(ok=not has_role, why=why)

    def on_turn(self, now_s: float) -> None:
        """Note that the loop turned."""
        self._turn_s = now_s

    def answer(self, now_s: float) -> HealthAnswer:
        """Whether the node does its work, as the loop itself says, which turns then."""
        self.on_turn(now_s)
        return self.of_role()

    def live(self, now_s: float) -> HealthAnswer:
        """Whether the loop turned lately."""
        still_s = now_s - self._turn_s
        if still_s > STANDS_STILL_S:
            return HealthAnswer(ok=False, why=f"the loop stood still for {still_s:.0f} s")
        return HealthAnswer(ok=True, why="the loop turns")

    def ready(self, now_s: float) -> HealthAnswer:
        """Whether the node does what its role is for."""
        live = self.live(now_s)
        return self.of_role() if live.ok else live
