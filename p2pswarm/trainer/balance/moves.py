"""Which server moves to a stage that nobody serves, so that a run does not wait for a newcomer.

A server can make the state of any stage where the run begins, or where it has gone back to: there
it follows from the seed, or lies in a checkpoint. So if a stage has no server then, and no newcomer
takes it, one server of the stage with the most moves there: its session is ended, and when it joins
again it is given that stage. A server that was told which stage to serve stays, as does the last
one of a stage. Elsewhere nobody moves: the weights can only come back with who has them.

Units:   seconds on the caller's clock.
Errors:  none.
"""

import math

from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.blame.failing_servers import FailingServers
from p2pswarm.trainer.members.membership import Member, Membership

MOVE_S = 10.0  # whoever was in the run is back by then, and newcomers get the stage first
AGAIN_S = 120.0  # for who has moved to load its weights
AGAIN_MAX_S = 3600.0  # both are doubled with each that has moved: the stage may suit none of them


class Moves:
    """The stages that wait for a server, and who was sent there."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._since_s: dict[int, float] = {}
        self._sent: dict[int, int] = {}
        """How many have moved to a stage since it had a ready server."""

    def due(
        self, stages: list[int], keep: int, servers: FailingServers, now_s: float
    ) -> tuple[Incarnation, str] | None:
        """A member whose session is to end, so that it moves, and why; None if nobody has to.

        `stages`: those without a ready server whose state anybody can make. Every other stage keeps
        `keep` ready members. `servers`: those that fail do not move.
        """
        if not stages and not self._since_s:
            return None  # asked after every note
        self._since_s = {stage: self._since_s.get(stage, now_s) for stage in stages}
        self._sent = {stage: sent for stage, sent in self._sent.items() if stage in stages}
        for stage in stages:
            if now_s >= self._due_s(stage) and (one := self._spare(keep, servers, now_s)):
                self._since_s[stage] = now_s
                self._sent[stage] = self._sent.get(stage, 0) + 1
                self._members.reserve(stage, one.incarnation.peer)
                return one.incarnation, f"it moves to stage {stage}, which has no server"
        return None

    def next_deadline_s(self, now_s: float) -> float | None:
        """When somebody may have to move; who lacks until then is noticed when it comes."""
        times = [due_s for stage in self._since_s if (due_s := self._due_s(stage)) > now_s]
        return min(times, default=None)

    def _due_s(self, stage: int) -> float:
        """When a server is to move to a stage: later if one loads its weights already."""
        first_s = AGAIN_S if self._members.waiting(stage) else MOVE_S
        wait_s = min(AGAIN_MAX_S, first_s * 2.0 ** self._sent.get(stage, 0))
        return self._since_s.get(stage, math.inf) + wait_s

    def _spare(self, keep: int, servers: FailingServers, now_s: float) -> Member | None:
        """The newest server that may move, of the stage with the most."""
        members = self._members
        free = [
            (members.ready_count(one.stage), -one.stage, one.incarnation.number, one)
            for one in members.ready()
            if members.ready_count(one.stage) > keep
            and not one.pinned
            and one.incarnation not in members.leaving
            and not servers.avoided(one.incarnation.peer, now_s)
        ]
        return max(free, key=lambda each: each[:3])[3] if free else None
