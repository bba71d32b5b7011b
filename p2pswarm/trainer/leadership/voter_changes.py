"""When a coordinator has its voters changed by a record of their own, not by the next step's.

A step may take minutes, and each voter that dies meanwhile brings the run nearer to where nobody
can decide. So a dead voter is replaced at once, and missing ones are added at once. Whatever can
wait for the step waits for it.

Units:   seconds on the caller's clock.
Errors:  none.
"""

from collections.abc import Container

from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.run.chain.record import VoterId

SPARE_S = 5.0  # servers join a new coordinator within a second, most of them: wait for a spare
AT_ONCE = 4  # a takeover takes two: dead voters are replaced, then missing ones added; and twice
AGAIN_S = 10.0  # a voter that comes and goes adds 360 records an hour, less than half a megabyte


class VoterChanges:
    """The patience and the purse of one trainer: records that cost no step are not for nothing."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        """Since when a voter has been lost."""
        self._purse = TokenBucket(AGAIN_S, AT_ONCE)

    def due(
        self,
        voters: tuple[VoterId, ...],
        following: tuple[VoterId, ...],
        lost: Container[bytes],
        now_s: float,
    ) -> bool:
        """Whether a record should change `voters` into `following` now.

        `lost`: the peers that do not answer.
        """
        dead = sum(voter.peer in lost for voter in voters)
        if 2 * dead >= len(voters):
            self.whole()
            return False  # nothing is decided until some are back, and they may be all back then
        if not dead:
            self.whole()
            return len(following) > len(voters) and self._purse.left(now_s)
        if self._since_s is None:
            self._since_s = now_s
        if following == voters:
            return False
        patient = len(following) >= len(voters) or now_s >= self._since_s + SPARE_S
        return patient and self._purse.left(now_s)

    def whole(self) -> None:
        """No voter is to be waited for."""
        self._since_s = None

    def proposed(self, now_s: float) -> None:
        """Such a record was proposed."""
        self._purse.take(now_s)
