"""Whom a push goes to first: the server that has its result already, then whom a router chooses.

The router learns nothing of a push to the keeper, which computes nothing: it would look fast.

Units:   seconds on the caller's clock.
Errors:  none.
Source:  docs/training.md, "What is not computed again".
"""

from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.push import Candidates, PushTimes


class KeeperFirst:
    """The servers that one push may go to; the keeper is asked once."""

    def __init__(self, router: Candidates, keeper: MemberRecord | None) -> None:
        self._router = router
        self._keeper = keeper
        self._asked: bytes | None = None
        """The keeper, while it is asked."""

    @property
    def others_may_come(self) -> bool:
        """Whether a view may bring a server while none is known."""
        return self._router.others_may_come

    def keeps(self, peer: bytes) -> bool:
        """Whether a peer is asked as the keeper: others are to compute."""
        return peer == self._asked

    def choose(self, now_s: float) -> MemberRecord | None:
        """The server to ask next; None while all are busy or gone."""
        keeper, self._keeper = self._keeper, None
        self._asked = None if keeper is None else keeper.peer
        return keeper or self._router.choose(now_s)

    def settle(self, peer: bytes, times: PushTimes) -> None:
        """A server has computed a push."""
        if not self.keeps(peer):
            self._router.settle(peer, times)

    def over(self, peer: bytes, chosen_s: float) -> None:
        """What was given to a server then is there no more; told once, after all else."""
        if not self.keeps(peer):
            self._router.over(peer, chosen_s)

    def busy(self, peer: bytes, until_s: float) -> None:
        """A server is full until then."""
        if not self.keeps(peer):
            self._router.busy(peer, until_s)

    def refused(self, peer: bytes, now_s: float) -> None:
        """A server does not serve this step or attempt."""
        if not self.keeps(peer):
            self._router.refused(peer, now_s)

    def failed(self, peer: bytes, now_s: float) -> None:
        """A server could not compute what it took."""
        if not self.keeps(peer):
            self._router.failed(peer, now_s)

    def lost(self, peer: bytes, now_s: float) -> None:
        """A server cannot be reached."""
        if not self.keeps(peer):
            self._router.lost(peer, now_s)

    def nobody_reached(self, now_s: float) -> bool:
        """Whether no server was reached the last time, by this push or by another."""
        return self._keeper is None and self._router.nobody_reached(now_s)

    def free_at_s(self) -> float | None:
        """When the first busy server may be asked again; None if no server is known."""
        return self._router.free_at_s()


def keepers_for(keepers: tuple[bytes, ...], stage: int, *, asked: bool) -> tuple[bytes, ...]:
    """What a push to a server of `stage` says of them; unless it is `asked`, it is to compute."""
    if asked or stage >= len(keepers):
        return keepers
    return (*keepers[:stage], b"", *keepers[stage + 1 :])


def keeper_among(
    keepers: tuple[bytes, ...], stage: int, members: tuple[MemberRecord, ...]
) -> MemberRecord | None:
    """The keeper of a stage, if it is one of these members."""
    named = keepers[stage] if stage < len(keepers) else b""
    if not named:
        return None
    return next((one for one in members if one.peer == named), None)
