"""The lifecycle of a stage server: it joins a run, loads weights, serves, leaves, and joins again.

A session is one incarnation: from the trainer's `Assigned` to the end of their stream. The
server outlives its sessions and looks for the trainer again: every 2 s at least, and less often
when the trainer has been gone for `rejoin_s`. It looks until the user ends it, or until another
run is found meanwhile. It joins no trainer that leads a lower term than one that it has heard of.

    OUT -> JOINING -> PREPARING -> LOADING -> SERVING -> FINISHING -> LEAVING -> OVER

A server that is asked to leave is STAYING until the trainer says that another has its weights.
Every state of a session falls back to OUT when the session is lost. `MOVES` has what may follow.

Units:   seconds on the caller's clock; terms as in docs/chain.md.
Errors:  LinkLost and BadMessage for a message that the trainer should not have sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from p2pswarm.base.errors import BadMessage, LinkLost
from p2pswarm.base.ids import Contact
from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.record import term_of
from p2pswarm.run.messages.membership import (
    Assigned,
    MayLeave,
    MoveTo,
    PrepareStage,
    StandsBy,
    View,
)
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.trainers import Alive, Trainers
from p2pswarm.server.trainer_search import (
    HINTS_MAX,
    REJOIN_MAX_S,
    SEEK_S,
    JoinPauses,
    TrainerSearch,
)

JOIN_S = 300.0  # for the trainer's first message: it may come only when a step has closed
SLEPT_S = 15.0  # a link is given up after as much silence: whoever slept so long has been evicted
LEFT = "left"
SessionNews = View | Trainers | MayLeave | Alive | PrepareStage


class ServerState(Enum):
    """The state of a server between its start and its end."""

    OUT = "is not in the run, and will join"
    JOINING = "has asked the trainer for a stage"
    PREPARING = "makes memory for its stage"
    LOADING = "gets its weights"
    SERVING = "computes"
    STAYING = "was asked to leave, and computes until another server has its stage's weights"
    FINISHING = "leaves after this step: it takes no new microbatch"
    LEAVING = "says goodbye"
    OVER = "will not join again"


S = ServerState
MOVES: dict[ServerState, tuple[ServerState, ...]] = {
    S.OUT: (S.JOINING, S.OVER),
    S.JOINING: (S.PREPARING, S.OUT, S.OVER),
    S.PREPARING: (S.LOADING, S.LEAVING, S.OUT, S.OVER),
    S.LOADING: (S.SERVING, S.LEAVING, S.OUT, S.OVER),
    S.SERVING: (S.STAYING, S.FINISHING, S.OUT, S.OVER),
    S.STAYING: (S.FINISHING, S.LEAVING, S.OVER),
    S.FINISHING: (S.STAYING, S.LEAVING, S.OVER),
    S.LEAVING: (S.OVER,),
    S.OVER: (),
}


@dataclass(frozen=True, slots=True)
class ServerEnd:
    """The reason for a server's end."""

    reason: str
    gave_up: bool = False
    """The run may go on: this server has only stopped looking for its trainer."""
    version: int | None = None
    """How many steps are done, as a trainer says; None if none does."""
    proved: bool = False
    """The run is over for sure."""
    on_purpose: bool = False
    """A trainer says that its owner ends the run before its last step."""


class Lifecycle:
    """One server in one run."""

    def __init__(self, trainers: Sequence[Contact], rejoin_s: float, now_s: float) -> None:
        """`trainers`: the first to ask first; `rejoin_s`: how long to look for one quickly."""
        self.trainers = TrainerSearch(trainers)
        """The trainers that may coordinate the run."""
        self._pauses = JoinPauses(rejoin_s, now_s)
        self.state = ServerState.OUT
        self._due_s: float | None = None
        self._met = False
        self._called_away = False  # the session ends because another trainer leads
        self._answers = False
        """True if the trainer that was asked has said that it does not coordinate."""
        self._hinted = False
        """True if the present try was given up on the word of another trainer."""
        self._hints = 0
        """How many in a row were."""
        self.sent_to: int | None = None
        """The stage to which the coordinator has sent this server on; None if it has not."""
        self.thrown_out = False
        """True if the coordinator has ended the last session: then its sum is void."""
        self._ever_met = False
        self._told_gone = False
        self._last = False  # the trainer says that nobody else has the weights of the stage
        self._term = 0  # of the highest leader that was heard of
        self.incarnation: int | None = None
        """Its own, or its last one; None if it was never in the run."""
        self._remarks: list[str] = []
        self.end: ServerEnd | None = None
        """Set when the server is over."""

    @property
    def trainer(self) -> Contact:
        """The trainer that it asked last, or asks first."""
        return self.trainers.present

    @property
    def orders_wait(self) -> bool:
        """True if an order may overtake the assignment that it follows, or the memory it needs.

        A newcomer that refused one would miss a reduction.
        """
        return self.state in (ServerState.JOINING, ServerState.PREPARING)

    @property
    def may_join(self) -> bool:
        """True if it is time to ask a trainer for a stage."""
        return self.state is ServerState.OUT and self._due_s is None

    @property
    def seeking(self) -> bool:
        """True if it has no session."""
        return self.state in (ServerState.OUT, ServerState.JOINING)

    @property
    def leaving(self) -> bool:
        """True if it was asked to leave and is still in the run."""
        return self.state in (ServerState.STAYING, ServerState.FINISHING, ServerState.LEAVING)

    @property
    def closing(self) -> bool:
        """True if it takes no new microbatch."""
        return self.state in (ServerState.FINISHING, ServerState.LEAVING)

    @property
    def must_say_goodbye(self) -> bool:
        """True if the trainer is to be told that this server leaves."""
        return self.state is ServerState.LEAVING

    def remarks(self) -> list[str]:
        """The news for the user; drained by reading."""
        remarks, self._remarks = self._remarks, []
        return remarks

    def knock_s(self) -> float | None:
        """The limit of this try to reach a trainer; None: as long as a dial takes."""
        return self._pauses.knock_s(others=bool(self.trainers.others))

    def may_change_run(self, now_s: float) -> bool:
        """Return whether it may go to another run: its trainer never answered, or is long gone."""
        return self.seeking and (not self._ever_met or self._gone(now_s))

    def look_again_s(self, now_s: float) -> float:
        """The wait until the run's trainers are looked up again."""
        return SEEK_S if self._gone(now_s) else REJOIN_MAX_S / 2

    def next_deadline_s(self) -> float | None:
        """Time to call `on_deadline`."""
        return self._due_s

    def on_deadline(self, now_s: float) -> None:
        """Join again, or leave in the middle of a step."""
        if self._due_s is None or now_s < self._due_s:
            return
        self._due_s = None
        if self._last:
            self._remarks.append(
                "leaving although no other server has the weights of this stage: they are lost "
                "with this process, unless the trainer tells of a checkpoint"
            )
        if self.state in (ServerState.STAYING, ServerState.FINISHING):
            self._move(ServerState.LEAVING)

    def joining(self, now_s: float) -> Contact:
        """Begin to ask a trainer for a stage; returns which."""
        self._move(ServerState.JOINING)
        self._pauses.tried_s = now_s
        self._met = self._called_away = self._answers = self._hinted = False
        self.sent_to = None
        return self.trainers.ask()

    def answered(self, message: Message | None) -> Assigned | None:
        """Take the trainer's answer to `Join`; None if the server is over."""
        if self.state is ServerState.OVER:  # asked to leave meanwhile
            return None
        if isinstance(message, Finished):
            self._on_finished(message)
            return None
        if isinstance(message, StandsBy):
            self._answers = True
            coordinator = message.contact
            if coordinator is not None and message.term >= self._term:
                self.trainers.found([coordinator])
            raise LinkLost(f"the trainer at {self.trainers.present.address} does not coordinate")
        if not isinstance(message, Assigned):
            raise LinkLost(f"the trainer answered {type(message).__name__}")
        term = term_of(message.incarnation)
        if term < self._term:
            raise LinkLost(
                f"the trainer at {self.trainers.present.address} leads term {term}, "
                f"and another leads term {self._term}"
            )
        self._term, self.incarnation = term, message.incarnation
        self._met = self._ever_met = True
        self.thrown_out = False
        self.trainers.coordinates()
        if self._told_gone:
            self._told_gone = False
            self._remarks.append(f"the trainer at {self.trainers.present.address} is there again")
        self._move(ServerState.PREPARING)
        return message

    def led(self, term: int, leader: Contact | None, now_s: float) -> bool:
        """Follow the leader of a term, as this node's voter does, and obey no lower one.

        True if the session, or the try to begin one, is to be ended.
        """
        if term < self._term or not self._outside(term):
            return False
        self._term = term
        return self._rather(leader, now_s)

    def named(self, answer: StandsBy, now_s: float) -> bool:
        """A trainer that was asked because the coordinator is silent says who leads.

        True if the session, or the try to begin one, is to be ended. The word of one trainer makes
        this server ask there. It does not make it refuse another. A trainer that has not heard of
        the newest leader yet names the one before it.
        """
        leader = answer.contact
        if leader is None or answer.term < self._term or not self._outside(answer.term):
            return False
        lost = 0 if self.incarnation is None else term_of(self.incarnation)
        if self.seeking and (self._hints >= HINTS_MAX or answer.term <= lost):
            return False  # of the one that it has lost a standby may not know that it is lost
        rather = self._rather(leader, now_s)
        self._hinted |= rather and self.seeking
        return rather

    def found(self, trainers: Sequence[Contact], now_s: float) -> bool:
        """These trainers of the run answer just now; True if the one asked is to be given up."""
        if not trainers or not self.seeking:
            return False
        return self._ask_first(trainers, now_s) and not self.trainers.has_reached(now_s)

    def prepared(self) -> None:
        """The memory of the stage is here; LinkLost if another trainer leads by now."""
        if self._called_away:
            raise LinkLost("another trainer leads the run")
        if self.state is ServerState.PREPARING:
            self._move(ServerState.LOADING)

    def loaded(self) -> None:
        """The weights are here."""
        if self.state is ServerState.LOADING:
            self._move(ServerState.SERVING)

    def on_message(self, message: Message | None) -> SessionNews | None:
        """Take a message of the trainer in a session; None if it ends the run."""
        match message:
            case Finished():
                self._on_finished(message)
                return None
            case StandsBy():  # it leads no more, and says who does, or is about to
                self._rather(message.contact, self._pauses.tried_s)
                raise LinkLost("the trainer hands the run over to another one")
            case MoveTo(stage=stage, reason=reason):
                self.thrown_out, self.sent_to = True, stage
                raise LinkLost(f"it moves to stage {stage}: {reason}")
            case None:
                self.thrown_out = True
                raise LinkLost("the trainer ended this server's part in the run")
            case Trainers():
                contacts = [one.contact for one in message.trainers]
                self.trainers.on_trainers([contact for contact in contacts if contact is not None])
                return message
            case MayLeave(may=may):
                self._may_leave(may=may)
                return message
            case View() | Alive() | PrepareStage():
                return message
        raise BadMessage(f"a {type(message).__name__} from the trainer")

    def woke(self, late_s: float) -> None:
        """Raise LinkLost for a timer so late that the machine slept, and is out of the run."""
        if late_s >= SLEPT_S:
            raise LinkLost(f"this machine slept for {late_s:.0f} s")

    def leave(self, now_s: float, grace_s: float) -> None:
        """Somebody asks the server to leave, within `grace_s`; it asks the trainer first."""
        match self.state:
            case ServerState.SERVING:
                self._due_s = now_s + grace_s
                self._move(ServerState.STAYING)
            case ServerState.PREPARING | ServerState.LOADING:
                self._move(ServerState.LEAVING)
            case ServerState.OUT | ServerState.JOINING:
                self._finish(ServerEnd(LEFT))
            case _:
                pass  # it is leaving already

    def _may_leave(self, *, may: bool) -> None:
        """The trainer says whether another server has the weights of this stage, and stays."""
        if self.state is ServerState.STAYING and may:
            self._last = False
            self._move(ServerState.FINISHING)
        elif self.state in (ServerState.STAYING, ServerState.FINISHING) and not may:
            if self.state is ServerState.FINISHING:
                self._move(ServerState.STAYING)
            self._last = True
            self._remarks.append(
                "no other server has the weights of this stage: leaving when one has them, or "
                "when the time to leave is over; Ctrl-C leaves at once"
            )

    def step_ended(self) -> None:
        """The weights have moved: nothing of the step is lost by leaving now."""
        if self.state is ServerState.FINISHING:
            self._due_s = None
            self._move(ServerState.LEAVING)

    def said_goodbye(self) -> None:
        """The trainer knows that this server leaves, or has not answered in time."""
        self._finish(ServerEnd(LEFT))

    def give_up(self, reason: str) -> None:
        """Stop looking for the trainer: the server is over, unless it has a session."""
        if self.seeking:
            self._finish(ServerEnd(reason, gave_up=True))

    def on_run_over(self, reason: str, version: int) -> None:
        """The run has come to its end while this server was away; proof is the caller's matter."""
        if self.seeking:
            self._finish(ServerEnd(reason, version=version, proved=True))

    def session_lost(self, reason: str, now_s: float) -> None:
        """The session, or the try to begin one, has failed: ask the next trainer, or pause."""
        if self.state is ServerState.OVER:
            return
        if self.leaving:
            self._finish(ServerEnd(LEFT))
            return
        if self._met:
            self._pauses.in_run(now_s)
            moves = self.sent_to is not None
            what = "leaving this stage" if moves else "out of the run, joining again"
            self._remarks.append(f"{what}: {reason}")
        if self._answers:
            self._pauses.on_answer(now_s)
        self._hints = self._hints + 1 if self._hinted else 0
        self._move(ServerState.OUT)
        several = self.trainers.several
        if self._met and several and not (self._called_away or self.sent_to is not None):
            self.trainers.lost()
        sent_on = self.sent_to is not None and self._pauses.steady(now_s)
        others = not self._met and self.trainers.others
        elsewhere = self._called_away or self._hinted or sent_on or others
        wait_s = self._pauses.next_s(now_s, met=self._met, several=several, elsewhere=elsewhere)
        if wait_s and self._pauses.gone(now_s):
            self._tell_gone(reason, now_s)
            self._term = 0  # whoever led it is gone as well: a run must not end with a lie
        self._due_s = now_s + wait_s

    def _outside(self, term: int) -> bool:
        """Return whether a leader of `term` is another one than the coordinator that it serves."""
        return self.seeking or self.incarnation is None or term > term_of(self.incarnation)

    def _rather(self, leader: Contact | None, now_s: float) -> bool:
        """Ask this one next; True if it takes the end of a session or of a join to do so."""
        if self.state is ServerState.OVER:
            return False
        if self.seeking:
            return leader is not None and self._ask_first([leader], now_s)
        if not self._called_away:
            self.trainers.lost()
        self._called_away = True
        if leader is not None:
            self.trainers.found([leader])
        return True

    def _ask_first(self, trainers: Sequence[Contact], now_s: float) -> bool:
        """Ask these next; True if another one is being asked."""
        self.trainers.found(trainers)
        if self.state is ServerState.OUT:
            self._due_s = None if self._due_s is None else now_s
            return False
        return self.trainers.present not in trainers

    def _gone(self, now_s: float) -> bool:
        """Return whether the trainer has been gone for so long that it is looked for less often."""
        return self.seeking and self._pauses.gone(now_s)

    def _tell_gone(self, reason: str, now_s: float) -> None:
        if self._told_gone:
            return
        self._told_gone = True
        where, gone_s = self.trainers.present.address, self._pauses.gone_s(now_s)
        self._remarks.append(
            f"the trainer at {where} is gone for {gone_s:.0f} s ({reason}): "
            f"looking for it every {SEEK_S:.0f} s"
        )

    def _on_finished(self, message: Finished) -> None:
        end = ServerEnd(message.reason, version=message.version, on_purpose=message.on_purpose)
        self._finish(end)

    def _finish(self, end: ServerEnd) -> None:
        self._move(ServerState.OVER)
        self._due_s = None
        self.end = end

    def _move(self, state: ServerState) -> None:
        assert state in MOVES[self.state], f"{self.state} -> {state}"
        self.state = state
