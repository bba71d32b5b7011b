"""One push and its retries: which server is asked next, and when the search ends.

    CHOOSING <-> WAITING                 a server is chosen, or waited for
    CHOOSING -> ASKED -> GRANTED -> SENT -> DONE
    ASKED, GRANTED, SENT -> CHOOSING     a definite refusal: that server does not have it
    ASKED, GRANTED, SENT -> UNKNOWN      that server may have it: the coordinator decides
    ASKED, GRANTED, SENT -> NOT_COMPUTED that server could not, and has told the coordinator
    CHOOSING, WAITING, ASKED -> GIVEN_UP nobody took it, and nobody has it

A push that finds nobody whom it can reach is given up soon: the coordinator takes another path.
It need not try itself: what other pushes found counts. Who is reached and does not serve, because
it is cut off itself, is as good as not reached. One that is busy is waited for.
A second server is asked only after a definite refusal. Busy, NotServing and TooLarge come from the
receiver's scheduler, which does not keep the microbatch. DialFailed before a grant means that the
push never left. NotComputed is definite too, but ends the attempt: the server has told the
coordinator, which launches the next one. After any other error the receiver may still be computing
the microbatch. A plain Refused is such an error too, because a handler that was cancelled ends so.

Source:  docs/training.md; for the keeper, docs/recovery.md, "What is not computed again".
"""

import math
from dataclasses import dataclass
from enum import Enum

from p2pswarm.base.errors import Busy, DialFailed, NotComputed, NotServing, SwarmError, TooLarge
from p2pswarm.plan.capacity import Transfer
from p2pswarm.run.member_view import MemberView
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import Receipt

SEARCH_S = 60.0  # how long to look for a server that takes it; then the trainer decides
UNREACHABLE_S = 2.0  # as long, if nobody can be reached: another server of our stage may reach one

UNGRANTED_S = 1.0  # a push that is taken back then was at a server that does not answer
BUSY_LEAST_S, BUSY_MAX_S = 0.01, 5.0  # what is believed of a server that is full, as it says itself


class PushState(Enum):
    """How far a push has come."""

    CHOOSING = "a server is to be chosen"
    WAITING = "no server is free, or none is known"
    ASKED = "a server has been asked"
    GRANTED = "it has set memory aside"
    SENT = "it has the bytes"
    DONE = "it has computed them"
    GIVEN_UP = "nobody took it"
    NOT_COMPUTED = "the server that took it could not compute it, and has told the coordinator"
    UNKNOWN = "a server may have it, or not"


S = PushState
MOVES: dict[PushState, tuple[PushState, ...]] = {
    S.CHOOSING: (S.WAITING, S.ASKED, S.GIVEN_UP),
    S.WAITING: (S.WAITING, S.ASKED, S.GIVEN_UP),
    S.ASKED: (S.GRANTED, S.CHOOSING, S.GIVEN_UP, S.NOT_COMPUTED, S.UNKNOWN),
    S.GRANTED: (S.SENT, S.CHOOSING, S.GIVEN_UP, S.NOT_COMPUTED, S.UNKNOWN),
    S.SENT: (S.DONE, S.CHOOSING, S.GIVEN_UP, S.NOT_COMPUTED, S.UNKNOWN),
    S.DONE: (),
    S.GIVEN_UP: (),
    S.NOT_COMPUTED: (),
    S.UNKNOWN: (),
}


@dataclass(frozen=True, slots=True)
class PushTimes:
    """What a push that was computed took, on our clock, and what the server's receipt told."""

    started_s: float
    """When it was granted and the bytes were there to be sent."""
    answered_s: float
    """When the receipt came."""
    chosen_s: float = math.inf
    """When the server was chosen; `inf`: at the start."""
    grant_s: float = 0.0
    """From the request of the grant until it was here."""
    queue_s: float = 0.0
    """As told: from the arrival of the bytes until it was taken up."""
    compute_s: float = math.inf
    """As told: how long it was computed; `inf`: nothing was told."""
    gradient_s: float = 0.0
    """As told: how long gradients take to come back to that server; 0: unknown."""

    def transfer(self, peer: bytes, nbytes: int) -> Transfer:
        """The bytes' way to a peer, without what it did with them."""
        took_s = self.answered_s - self.started_s - self.queue_s - self.compute_s
        return Transfer(peer, nbytes, self.started_s, took_s, self.grant_s)


class Candidates:
    """The servers that a push may go to. Here there is none, and nothing is learned of any."""

    others_may_come = False
    """True if a view may bring a server while none is known."""

    def choose(self, _now_s: float) -> MemberRecord | None:
        """Return the server to ask next; None while all are busy or gone."""
        return None

    def settle(self, peer: bytes, times: PushTimes) -> None:
        """A server has computed a push."""

    def unanswered(self, peer: bytes, held_s: float) -> None:
        """A push was taken from a server that had it for so long and had not computed it."""

    def over(self, peer: bytes, chosen_s: float) -> None:
        """What was given to a server then is there no more; told once, after all else."""

    def busy(self, peer: bytes, now_s: float, retry_after_s: float) -> None:
        """A server is full, and says for how long."""

    def refused(self, peer: bytes, now_s: float) -> None:
        """A server does not serve this step or attempt."""

    def failed(self, peer: bytes, now_s: float) -> None:
        """A server could not compute what it took."""

    def lost(self, peer: bytes, now_s: float) -> None:
        """A server cannot be reached."""

    def ungranted(self, peer: bytes, now_s: float) -> None:
        """A push was taken from a server that had not answered for `UNGRANTED_S`."""

    def nobody_reached(self, _now_s: float) -> bool:
        """Return whether no server was reached the last time, by this push or by another."""
        return False

    def free_at_s(self) -> float | None:
        """Return when the first busy server may be asked again; None if no server is known."""
        return None


NO_CANDIDATES = Candidates()


class OnlyPeer(Candidates):
    """The one server that a gradient may go to: the one its microbatch came from."""

    def __init__(self, members: MemberView, peer: bytes) -> None:
        self._members = members
        self._peer = peer
        self._free_s = -math.inf
        self._gone = False

    def choose(self, now_s: float) -> MemberRecord | None:
        """It, unless it is busy, gone, or has refused."""
        return None if self._gone or now_s < self._free_s else self._members.record(self._peer)

    def busy(self, _peer: bytes, now_s: float, retry_after_s: float) -> None:
        """It is full, and says for how long."""
        self._free_s = now_s + min(max(retry_after_s, BUSY_LEAST_S), BUSY_MAX_S)

    def refused(self, peer: bytes, now_s: float) -> None:  # noqa: ARG002
        """It waits for the gradient no more, has forgotten the microbatch, or is not reached."""
        self._gone = True

    failed = lost = refused

    def free_at_s(self) -> float | None:
        """Return when it may be asked again; None if never."""
        known = not self._gone and self._members.record(self._peer) is not None
        return self._free_s if known else None


class PushProgress:
    """One microbatch on its way to one of several servers."""

    def __init__(
        self,
        candidates: Candidates,
        nobody: str,
        now_s: float,
        search_s: float = SEARCH_S,
        keeper: MemberRecord | None = None,
    ) -> None:
        """`nobody`: the reason if no server was ever asked; `keeper`: the one to ask first.

        `candidates` learn nothing of the keeper: it computes nothing, and would look fast.
        """
        self.state = PushState.CHOOSING
        self.reason: str | None = nobody
        """What to tell the coordinator; None if there is nothing, or the server has told it."""
        self.asks_keeper = False
        """True if the server that is asked has the result already; others are to compute."""
        self._keeper = keeper
        self._candidates = candidates
        self._give_up_s = now_s + search_s
        self._unreachable_s = math.inf
        """Since when nobody could be reached; never, if somebody could."""
        self._due_s: float | None = None
        self._asked: MemberRecord | None = None
        self._asked_s = self._started_s = now_s
        self._grant_s = 0.0
        self.times: PushTimes | None = None
        """What it took, once a server has computed it."""

    @property
    def over(self) -> bool:
        """Return whether there is nothing more to do."""
        return not MOVES[self.state]

    def next_deadline_s(self) -> float | None:
        """While it is WAITING: when to `choose` again, if no view comes before."""
        return self._due_s

    def choose(self, now_s: float) -> MemberRecord | None:
        """The server to ask now; None if there is none, at present or for good."""
        self._due_s = None
        if self._keeper is None and self._candidates.nobody_reached(now_s):
            self._unreachable_s = min(self._unreachable_s, now_s)
        give_up_s = min(self._give_up_s, self._unreachable_s + UNREACHABLE_S)
        if now_s >= give_up_s:
            self._move(PushState.GIVEN_UP)
            return None
        keeper, self._keeper = self._keeper, None
        self.asks_keeper = keeper is not None
        member = keeper or self._candidates.choose(now_s)
        if member is not None:
            self._asked, self._asked_s, self._started_s = member, now_s, now_s
            self._move(PushState.ASKED)
            return member
        free_s = self._candidates.free_at_s()
        if free_s is None and not self._candidates.others_may_come:
            self._move(PushState.GIVEN_UP)
            return None
        self._due_s = give_up_s if free_s is None else min(free_s, give_up_s)
        self._move(PushState.WAITING)
        return None

    def granted(self, now_s: float) -> None:
        """The server that was asked has set memory aside."""
        self._move(PushState.GRANTED)
        self._grant_s = now_s - self._asked_s
        self._started_s = now_s

    def sent(self, started_s: float) -> None:
        """It has the bytes; they were there to be sent at `started_s`."""
        self._move(PushState.SENT)
        self._started_s = max(self._started_s, started_s)

    def computed(self, now_s: float, receipt: Receipt) -> None:
        """It has computed them."""
        self._move(PushState.DONE)
        self.reason = None
        self.times = PushTimes(
            self._started_s,
            now_s,
            self._asked_s,
            self._grant_s,
            receipt.queue_s,
            receipt.compute_s,
            receipt.gradient_s,
        )
        self._learning.settle(self._peer, self.times)

    def ended(self, now_s: float) -> None:
        """The push to the server that was asked is over, or was cancelled."""
        if self.state is PushState.ASKED and now_s >= self._asked_s + UNGRANTED_S:
            self._learning.ungranted(self._peer, now_s)
        if self.state is PushState.SENT:
            self._learning.unanswered(self._peer, now_s - self._started_s)
        self._learning.over(self._peer, self._asked_s)

    def failed(self, error: SwarmError, now_s: float) -> None:
        """The push to the server that was asked has failed: decide whether it may have it."""
        if self.state is PushState.DONE:
            return  # the stream failed after the receipt: nothing is lost
        peer, learning = self._peer, self._learning
        self.reason = str(error) or type(error).__name__
        before, asked = self.state, self.state is PushState.ASKED
        not_reached = isinstance(error, DialFailed) and asked
        in_vain = not_reached or (isinstance(error, NotServing) and asked)
        self._unreachable_s = min(self._unreachable_s, now_s) if in_vain else math.inf
        match error:
            case Busy():
                self._move(PushState.CHOOSING)
                if before is PushState.SENT:  # the bytes were in vain, and it had granted them
                    learning.failed(peer, now_s)
                learning.busy(peer, now_s, error.retry_after_s)
            case NotServing():
                self._move(PushState.CHOOSING)
                learning.refused(peer, now_s)
            case TooLarge():
                self._move(PushState.GIVEN_UP)  # it fits no server
            case DialFailed() if not_reached:
                self._move(PushState.CHOOSING)
                learning.lost(peer, now_s)
            case NotComputed():
                self._move(PushState.NOT_COMPUTED)
                self.reason = None  # who heard it from us first would take us for the cause
                learning.failed(peer, now_s)
            case _:
                self._move(PushState.UNKNOWN)
                learning.lost(peer, now_s)

    @property
    def _learning(self) -> Candidates:
        return NO_CANDIDATES if self.asks_keeper else self._candidates

    @property
    def _peer(self) -> bytes:
        assert self._asked is not None, "a server was asked"
        return self._asked.peer

    def _move(self, state: PushState) -> None:
        assert state in MOVES[self.state], f"{self.state} -> {state}"
        self.state = state


def keepers_for(keepers: tuple[bytes, ...], stage: int, *, asked: bool) -> tuple[bytes, ...]:
    """Return the keepers for a push to a server of `stage`, which computes unless it is `asked`."""
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
