"""The lifecycle of a stage server: it joins a run, loads weights, serves, leaves, and joins again.

A session is one incarnation: from the trainer's `Assigned` to the end of their stream. The
server outlives its sessions and tries to join again, less and less often, until the trainer has
been gone for too long.

    OUT -> JOINING -> PREPARING -> LOADING -> SERVING -> FINISHING -> LEAVING -> OVER

Every state of a session falls back to OUT when the session is lost.

Units:   seconds on the caller's clock.
Errors:  LinkLost and BadMessage for a message that the trainer should not have sent.
"""

from dataclasses import dataclass
from enum import Enum

from p2pswarm.errors import BadMessage, LinkLost
from p2pswarm.swarm.messages.membership import Assigned, MemberRecord, Ready, View
from p2pswarm.swarm.messages.run import Finished
from p2pswarm.wire.message import Message

JOIN_S = 300.0  # for the trainer's first message: it may come only when a step has closed
REJOIN_FIRST_S, REJOIN_MAX_S = 0.25, 5.0
STEADY_S = 10.0  # a session this long was a good one: the pauses start small again
LEAVE_S = 3.0  # the process has 5 s to stop; leaving after the step saves a replay
LEFT = "left"


class ServerState(Enum):
    """Where a server is between its start and its end."""

    OUT = "is not in the run, and will join"
    JOINING = "has asked the trainer for a stage"
    PREPARING = "makes memory for its stage"
    LOADING = "gets its weights"
    SERVING = "computes"
    FINISHING = "leaves after this step: it takes no new microbatch"
    LEAVING = "says goodbye"
    OVER = "will not join again"


S = ServerState
MOVES: dict[ServerState, tuple[ServerState, ...]] = {
    S.OUT: (S.JOINING, S.OVER),
    S.JOINING: (S.PREPARING, S.OUT, S.OVER),
    S.PREPARING: (S.LOADING, S.LEAVING, S.OUT, S.OVER),
    S.LOADING: (S.SERVING, S.LEAVING, S.OUT, S.OVER),
    S.SERVING: (S.FINISHING, S.OUT, S.OVER),
    S.FINISHING: (S.LEAVING, S.OUT, S.OVER),
    S.LEAVING: (S.OVER,),
    S.OVER: (),
}


@dataclass(frozen=True, slots=True)
class ServerEnd:
    """Why a server is over."""

    reason: str
    failed: bool = False
    """The trainer was gone for too long."""


class Lifecycle:
    """One server in one run."""

    def __init__(self, trainer: str, rejoin_s: float, now_s: float) -> None:
        """`trainer`: its address, for error texts; `rejoin_s`: how long it may be gone."""
        self._trainer = trainer
        self._rejoin_s = rejoin_s
        self._state = ServerState.OUT
        self._pause_s = REJOIN_FIRST_S
        self._tried_s = now_s
        self._seen_s = now_s  # when we were last in the run
        self._due_s: float | None = None
        self._met = False
        self.end: ServerEnd | None = None
        """Set when the server is over."""

    @property
    def state(self) -> ServerState:
        """Where the server is."""
        return self._state

    @property
    def orders_wait(self) -> bool:
        """Whether an order of the trainer is too early.

        An order may overtake the assignment that it follows, and the memory that it needs. A
        newcomer that refused one would miss a reduction.
        """
        return self._state in (ServerState.JOINING, ServerState.PREPARING)

    @property
    def may_join(self) -> bool:
        """Whether it is time to ask the trainer for a stage."""
        return self._state is ServerState.OUT and self._due_s is None

    @property
    def must_say_goodbye(self) -> bool:
        """Whether the trainer is to be told that this server leaves."""
        return self._state is ServerState.LEAVING

    def next_deadline_s(self) -> float | None:
        """When to call `on_deadline`."""
        return self._due_s

    def on_deadline(self, now_s: float) -> None:
        """Join again, or leave in the middle of a step."""
        if self._due_s is None or now_s < self._due_s:
            return
        self._due_s = None
        if self._state is ServerState.FINISHING:
            self._move(ServerState.LEAVING)

    def joining(self, now_s: float) -> None:
        """Begin to ask the trainer for a stage."""
        self._move(ServerState.JOINING)
        self._tried_s, self._met = now_s, False

    def answered(self, message: Message | None) -> Assigned | None:
        """Take the trainer's answer to `Join`; None if the server is over."""
        if self._state is ServerState.OVER:  # asked to leave meanwhile
            return None
        if isinstance(message, Finished):
            self._finish(message.reason)
            return None
        if not isinstance(message, Assigned):
            raise LinkLost(f"the trainer answered {type(message).__name__}")
        self._met = True
        self._move(ServerState.PREPARING)
        return message

    def prepared(self) -> None:
        """The memory of the stage is here."""
        if self._state is ServerState.PREPARING:
            self._move(ServerState.LOADING)

    def loaded(self) -> None:
        """The weights are here."""
        if self._state is ServerState.LOADING:
            self._move(ServerState.SERVING)

    def told(self, message: Message | None) -> View | None:
        """Take a message of the trainer in a session; None if it ends the run."""
        if isinstance(message, Finished):
            self._finish(message.reason)
            return None
        if message is None:
            raise LinkLost("the trainer ended this server's part in the run")
        if not isinstance(message, View):
            raise BadMessage(f"a {type(message).__name__} from the trainer")
        return message

    def ready_after_commit(
        self, record: MemberRecord | None, version: int, digest: bytes
    ) -> Ready | None:
        """What to say after a commit: a server that is not ready in the view says it again."""
        return None if record is not None and record.ready else Ready(version, digest)

    def leave(self, now_s: float) -> None:
        """Somebody asks the server to leave: at the end of the step, if it serves."""
        match self._state:
            case ServerState.SERVING:
                self._move(ServerState.FINISHING)
                self._due_s = now_s + LEAVE_S
            case ServerState.PREPARING | ServerState.LOADING:
                self._move(ServerState.LEAVING)
            case ServerState.OUT | ServerState.JOINING:
                self._finish(LEFT)
            case _:
                pass  # it is leaving already

    def step_ended(self) -> None:
        """The weights have moved: nothing of the step is lost by leaving now."""
        if self._state is ServerState.FINISHING:
            self._due_s = None
            self._move(ServerState.LEAVING)

    def said_goodbye(self) -> None:
        """The trainer has been told that this server leaves."""
        self._finish(LEFT)

    def session_lost(self, reason: str, now_s: float) -> None:
        """The session, or the try to begin one, has failed: try again, or give up."""
        if self._state is ServerState.OVER:
            return
        if self._state in (ServerState.FINISHING, ServerState.LEAVING):
            self._finish(LEFT)
            return
        if self._met:
            self._seen_s = now_s
        if now_s - self._tried_s > STEADY_S:
            self._pause_s = REJOIN_FIRST_S
        gone_s = now_s - self._seen_s
        if gone_s >= self._rejoin_s:
            gone = f"the trainer at {self._trainer} is gone for {gone_s:.0f} s"
            self._finish(f"{gone}: {reason}", failed=True)
            return
        self._move(ServerState.OUT)
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, REJOIN_MAX_S)

    def _finish(self, reason: str, *, failed: bool = False) -> None:
        self._move(ServerState.OVER)
        self._due_s = None
        self.end = ServerEnd(reason, failed)

    def _move(self, state: ServerState) -> None:
        assert state in MOVES[self._state], f"{self._state} -> {state}"
        self._state = state
