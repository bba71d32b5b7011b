"""Orders to servers on the wire, and what a server's answers and reports mean to the coordinator.

Errors:  BadMessage for a message that is no report, or that comes before the assignment.
"""

import logging
from collections import Counter
from collections.abc import Sequence

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.data.samples.corpus import Corpus, Tokens
from p2pswarm.data.samples.pair_corpus import PairCorpus
from p2pswarm.data.samples.references import References
from p2pswarm.net.wire.message import Message
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.membership import Apart, CannotPrepare, Load, Ready, WillLeave
from p2pswarm.run.messages.microbatch import (
    Counted,
    Evaluated,
    Handed,
    Push,
    Sketch,
    Undelivered,
    number_of,
)
from p2pswarm.run.messages.step import CannotAverage, Committed, Fenced, Reduced
from p2pswarm.run.messages.trainers import Alive
from p2pswarm.settings.parser import RUN_VERSION
from p2pswarm.tensors.codecs.meta import TensorMeta
from p2pswarm.trainer.coordinator.admission import COMMIT_MAX_S
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import VersionsRefused
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE, REFERENCE_BASE


def on_report(
    coordinator: Coordinator, by: Incarnation | None, note: Message, now_s: float
) -> bool:
    """Tell the coordinator a note of a member; returns whether something may have to be done now.

    `by`: None if it has no assignment yet.
    """
    if by is None:
        raise BadMessage(f"a {type(note).__name__} before Assigned")
    coordinator.silence.on_word(by, now_s)
    match note:
        case Handed():
            coordinator.on_handoff(Incarnation(note.peer, note.incarnation), note, now_s, by)
        case Counted():
            coordinator.on_count(by, note, now_s)
        case Undelivered():
            coordinator.on_delivery_failure(note, now_s, by)
        case Sketch():
            coordinator.on_sketch(by, note, now_s)
        case Evaluated():
            coordinator.on_evaluation(by, note, now_s)
        case Ready():
            coordinator.on_ready(by, note, now_s)
        case WillLeave():
            coordinator.on_leave_request(by, note.grace_s, now_s)
        case Load() | Alive() | Apart() | CannotPrepare():
            return _on_word(coordinator, by, note, now_s)
        case _:
            raise BadMessage(f"a {type(note).__name__} where a note is due")
    return True


def _on_word(
    coordinator: Coordinator,
    by: Incarnation,
    word: Load | Alive | Apart | CannotPrepare,
    now_s: float,
) -> bool:
    """A member lives. Most say nothing else in half a second, so this must cost next to nothing."""
    if isinstance(word, Alive):
        return False
    if isinstance(word, Apart):
        coordinator.on_unreachable_peers(by, word.peers, now_s)
        return True
    if isinstance(word, CannotPrepare):
        coordinator.on_preparation_refusal(by, word, now_s)
        return True
    coordinator.silence.on_unheard_time(by, word.unheard_s, now_s)
    coordinator.on_load(by, word)
    return True


log = logging.getLogger(__name__)
GRACE_S = 20.0  # the coordinator gives up first: its clock stands still while it is stopped

Call = act.SendFence | act.SendReduce | act.SendCommit
"""An order that is a unary call to one member."""

Order = act.Launch | act.CountTargets | Call


def samples_of(microbatch: int, corpus: Corpus) -> Tokens:
    """The samples of a microbatch, its check or a held-out batch, (rows, sequence + 1)."""
    if microbatch >= REFERENCE_BASE:
        assert isinstance(corpus, PairCorpus), "only pairs have references"
        return corpus.reference_batch(microbatch - REFERENCE_BASE)
    if microbatch >= EVALUATION_BASE:
        return corpus.held_out_batch(microbatch - EVALUATION_BASE)
    return corpus.microbatch(number_of(microbatch))


def references_of(corpus: Corpus) -> References | None:
    """The references of a text, if it is one of pairs and they are compared with."""
    return corpus.references if isinstance(corpus, PairCorpus) else None


def targets_of(microbatches: Sequence[int], corpus: Corpus) -> dict[int, int]:
    """How many targets microbatches and held-out batches have."""
    return {
        number: corpus.held_out_targets(number - EVALUATION_BASE)
        if number >= EVALUATION_BASE
        else corpus.targets(number)
        for number in microbatches
    }


def first_push(order: act.Launch, run: bytes, meta: TensorMeta) -> Push:
    """Return what opens the stream to a server of stage 0; the sender fills in the incarnation."""
    what = order.step, order.microbatch, order.attempt, order.work
    return Push(run, *what, 0, 0, order.counting, (meta,), order.keepers)


def undelivered_note(order: act.Launch, reason: str) -> Undelivered:
    """No server took the microbatch, or it is unknown whether one did."""
    return Undelivered(order.step, order.microbatch, order.attempt, reason[:REASON_CHARS])


def limit_s(order: Call) -> float:
    """Return how long a member may take to answer."""
    limit_s = COMMIT_MAX_S if isinstance(order, act.SendCommit) else order.limit_s
    return limit_s + GRACE_S


def on_answer(
    coordinator: Coordinator, order: Call, answer: Message | SwarmError, now_s: float
) -> None:
    """Tell the coordinator what a member answered; a wrong type is a failure, as a lost link is."""
    to = order.incarnation
    if isinstance(answer, Message):
        coordinator.silence.on_word(to, now_s)
    match order, answer:
        case act.SendReduce() | act.SendCommit(), _ if order.message.observed is not None:
            _observed(coordinator, order, answer)
        case act.SendFence(), Fenced():
            coordinator.on_fence_answer(to, answer.counted, now_s, order.message.step)
        case act.SendFence(), _:
            coordinator.on_stream_end(to, f"it did not answer a fence: {_failure(answer)}", now_s)
        case act.SendReduce(), Reduced():
            coordinator.on_reduction(to, order.message.generation, answer, now_s)
        case act.SendReduce(), CannotAverage(peer, reason):
            coordinator.on_reduction_failure(to, order.message.generation, reason, now_s, peer)
        case act.SendReduce(), _:
            coordinator.on_reduction_failure(to, order.message.generation, _failure(answer), now_s)
        case act.SendCommit(), Committed():
            coordinator.on_commit_answer(to, order.message.step, answer, now_s)
        case act.SendCommit(), _:
            coordinator.on_commit_failure(to, order.message.step, _failure(answer), now_s)


def _observed(
    coordinator: Coordinator, order: act.SendReduce | act.SendCommit, answer: Message | SwarmError
) -> None:
    """A mover answers as an observer of its new stage: nobody waits for it, whatever it says."""
    if isinstance(order, act.SendReduce) and isinstance(answer, Reduced):
        coordinator.on_observation(order.incarnation, order.message.step, answer)
    elif not isinstance(answer, Committed):
        what, step = type(order.message).__name__, order.message.step
        log.info("%s missed a %s of step %d: %s", order.incarnation, what, step, _failure(answer))


def _failure(answer: Message | SwarmError) -> str:
    if isinstance(answer, Message):
        answer = BadMessage(f"{type(answer).__name__} is no answer to that")
    return str(answer) or type(answer).__name__


PEERS_MAX = 1024  # remembered, 32 bytes each: whoever reads of so many knows enough
SAY_EVERY_S = 10.0  # a fleet that starts at once is told of in two lines
VERSIONS_MAX = 4  # named in a report: an honest swarm has two releases, seldom three


class VersionRefusals:
    """Peers that speak another version of runs, each counted once; reports are rare."""

    def __init__(self, ours: int = RUN_VERSION, peers_max: int = PEERS_MAX) -> None:
        self.ours = ours
        """The version of this trainer's run."""
        self._max = peers_max
        self._speaks: dict[PeerId, int] = {}
        self._reported = 0
        self._reported_s = float("-inf")
        self._reports: list[VersionsRefused] = []
        self._closed = False

    def on_notice(self, peer: PeerId, speaks: int, now_s: float) -> None:
        """A peer says which version it speaks; its last word counts."""
        if speaks == self.ours:
            return  # it read an older record of ours, or makes this up
        if peer in self._speaks or len(self._speaks) < self._max:
            self._speaks[peer] = speaks
            self.on_deadline(now_s)

    def close(self) -> None:
        """The run is over: nothing more is told."""
        self._closed = True
        self._reports = []

    def drain(self) -> list[VersionsRefused]:
        """Reports to tell; drained by reading."""
        reports, self._reports = self._reports, []
        return reports

    def next_deadline_s(self) -> float | None:
        """Return when people are told of the peers that have come since the last time."""
        if self._closed or len(self._speaks) == self._reported:
            return None
        return self._reported_s + SAY_EVERY_S

    def on_deadline(self, now_s: float) -> None:
        """Tell how many there are, if there are more than before and it is time."""
        due_s = self.next_deadline_s()
        if due_s is None or now_s < due_s:
            return
        self._reported, self._reported_s = len(self._speaks), now_s
        common = Counter(self._speaks.values()).most_common(VERSIONS_MAX)
        versions = tuple(version for version, _ in common)
        self._reports.append(VersionsRefused(self._reported, versions, self.ours))
