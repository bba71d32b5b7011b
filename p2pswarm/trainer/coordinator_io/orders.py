"""The coordinator's orders on the wire: the request, its time limit, and its outcome.

Units:   seconds.
Errors:  none; the coordinator is told of failures. An answer of the wrong type is a failure, like a
         lost link.
"""

import logging

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.data.corpus import Corpus, Tokens
from p2pswarm.net.wire.message import Message
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import CHECK_BASE, Handed, Push, Undelivered
from p2pswarm.run.messages.step import CannotAverage, Committed, Fenced, Reduced
from p2pswarm.run.messages.types import REASON_CHARS, Work
from p2pswarm.tensors.codecs.meta import TensorMeta
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.reduction.commits import COMMIT_MAX_S
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE

log = logging.getLogger(__name__)
GRACE_S = 20.0  # the coordinator gives up first: its clock stands still while it is stopped

Call = act.SendFence | act.SendReduce | act.SendCommit
"""An order that is a unary call to one member."""

Order = act.Launch | Call
"""What the coordinator asks servers to do."""


def tokens(order: act.Launch, corpus: Corpus) -> Tokens:
    """The samples of a microbatch, its check or a held-out batch, (rows, sequence + 1)."""
    if order.work is Work.EVALUATE:
        return corpus.held_out_batch(order.microbatch - EVALUATION_BASE)
    return corpus.microbatch(order.microbatch % CHECK_BASE)


def first_push(order: act.Launch, run: bytes, meta: TensorMeta) -> Push:
    """What opens the stream to a server of stage 0; the sender fills in the incarnation."""
    what = order.step, order.microbatch, order.attempt, order.work
    return Push(run, *what, 0, 0, order.counting, (meta,), order.keepers)


def handed(order: act.Launch, to: MemberRecord) -> Handed:
    """A server of stage 0 took the microbatch."""
    return Handed(order.step, order.microbatch, order.attempt, to.peer, to.incarnation)


def undelivered(order: act.Launch, reason: str) -> Undelivered:
    """No server took the microbatch, or it is unknown whether one did."""
    return Undelivered(order.step, order.microbatch, order.attempt, reason[:REASON_CHARS])


def limit_s(order: Call) -> float:
    """How long a member may take to answer."""
    match order:
        case act.SendFence():
            return order.limit_s + GRACE_S
        case act.SendReduce():
            return order.limit_s + GRACE_S
        case act.SendCommit():
            return COMMIT_MAX_S + GRACE_S


def answered(
    coordinator: Coordinator, order: Call, answer: Message | SwarmError, now_s: float
) -> None:
    """Tell the coordinator what a member answered, or why it did not."""
    to = order.incarnation
    if isinstance(answer, Message):
        coordinator.silence.heard(to, now_s)
    match order, answer:
        case act.SendReduce() | act.SendCommit(), _ if order.message.observed is not None:
            _observed(coordinator, order, answer)
        case act.SendFence(), Fenced():
            coordinator.fenced(to, answer.counted, now_s)
        case act.SendFence(), _:
            coordinator.lost(to, f"it did not answer a fence: {_failure(answer)}", now_s)
        case act.SendReduce(), Reduced():
            coordinator.reduced(to, order.message.generation, answer, now_s)
        case act.SendReduce(), CannotAverage(peer, reason):
            coordinator.reduce_failed(to, order.message.generation, reason, now_s, peer)
        case act.SendReduce(), _:
            coordinator.reduce_failed(to, order.message.generation, _failure(answer), now_s)
        case act.SendCommit(), Committed():
            coordinator.committed(to, order.message.step, answer, now_s)
        case act.SendCommit(), _:
            coordinator.commit_failed(to, order.message.step, _failure(answer), now_s)


def _observed(
    coordinator: Coordinator, order: act.SendReduce | act.SendCommit, answer: Message | SwarmError
) -> None:
    """A mover answers as an observer of its new stage: nobody waits for it, whatever it says."""
    if isinstance(order, act.SendReduce) and isinstance(answer, Reduced):
        coordinator.observed(order.incarnation, order.message.step, answer)
    elif not isinstance(answer, Committed):
        what, step = type(order.message).__name__, order.message.step
        log.info("%s missed a %s of step %d: %s", order.incarnation, what, step, _failure(answer))


def _failure(answer: Message | SwarmError) -> str:
    if isinstance(answer, Message):
        answer = BadMessage(f"{type(answer).__name__} is no answer to that")
    return str(answer) or type(answer).__name__
