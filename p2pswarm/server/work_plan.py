"""The plan for a microbatch: the call of the stage, the route of its result, what is told of it.

Errors:  NotServing or Busy for a sender that is not next to this stage; NotServing for what could
         not go on from here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from p2pswarm.base.errors import Busy, DialFailed, NotComputed, NotServing, Refused, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.base import (
    BackwardSpec,
    Engine,
    HeldOutResult,
    LossResult,
    NotFiniteHere,
    Stage,
)
from p2pswarm.models.compute.sketch import Sketcher
from p2pswarm.run.messages.field_limits import REASON_CHARS, Obstacle, Work
from p2pswarm.run.messages.membership import Load, MemberRecord
from p2pswarm.run.messages.microbatch import (
    Counted,
    Evaluated,
    Handed,
    Push,
    Sketch,
    Undelivered,
    number_of,
)
from p2pswarm.server.boundary_cache import BoundaryCache, Period, ResultRoute, WorkItem
from p2pswarm.server.commit_log import ClosedSum
from p2pswarm.server.scheduler import Scheduler, WorkInputs
from p2pswarm.tensors.codecs.base import Unencodable
from p2pswarm.tensors.codecs.edge_codecs import EdgeCodecs
from p2pswarm.tensors.codecs.edge_state import EdgeKey, EdgeStates, EdgeTransfer
from p2pswarm.tensors.codecs.meta import TensorMeta, travels_alone
from p2pswarm.tensors.codecs.registry import EncodedTensor, TensorToEncode

OVER = "this server's incarnation is over"
UNKNOWN_RETRY_S = 0.05  # our view lags behind the sender's by so much at most

Made = Bundle | LossResult | float | HeldOutResult
"""The result of a stage: a bundle or its gradient, the last stage's, or a held-out loss."""


class StageCall(Enum):
    """The method of `Stage` that does the work."""

    FORWARD = auto()
    BACKWARD = auto()
    FINISH = auto()
    EVALUATE = auto()


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """The plan for one microbatch.

    All of it is decided when the worker takes a microbatch, from what the scheduler knows then.

    A grant is requested while the microbatch is still being computed: once two bundles of a
    direction had equal sizes, the next is announced with them. This hides one round trip of every
    hop.
    """

    item: WorkItem
    call: StageCall
    spec: BackwardSpec
    exit: ResultRoute
    forward: WorkItem
    """The item whose sender a gradient goes back to."""

    @property
    def returning(self) -> bool:
        """True if its gradient is to come back here from the next stage."""
        return self.call is StageCall.FORWARD

    @property
    def counted(self) -> bool:
        """True if the gradient is in the sum; known once the call has returned."""
        return self.spec.added

    def stage_of(self, engine: Engine) -> Stage:
        """Return what computes it; a held-out batch is for the newest weights, the next step's."""
        push = self.item.push
        return engine.of_step(push.step + 1 if push.work == Work.EVALUATE else push.step)

    def run(self, stage: Stage, inputs: WorkInputs) -> Made:
        """Call the stage, on the compute thread."""
        made = self._run(stage, inputs)
        if self.spec.permit is not None:
            self.spec.permit.whole = True
        return made

    def _run(self, stage: Stage, inputs: WorkInputs) -> Made:
        if self.call is StageCall.BACKWARD:
            return stage.backward(self.item.key, inputs.bundle, self.spec)
        assert inputs.tokens is not None, "only a gradient comes without tokens"
        if self.call is StageCall.FORWARD:
            return stage.forward(self.item.key, inputs.tokens, inputs.bundle)
        if self.call is StageCall.FINISH:
            return stage.finish(inputs.tokens, inputs.bundle, self.spec)
        training = self.item.work is Work.FORWARD
        return stage.evaluate(inputs.tokens, inputs.bundle, training=training)

    def keep(self, kept: BoundaryCache, made: Made) -> None:
        """Keep what goes to the stages beside this one, for when one of them loses its sum."""
        bundle = bundle_in(made)
        if self.returning and bundle is not None:
            kept.gave(self.item.key, bundle)
        elif self.counted:
            kept.counted(self.item.key, bundle if self.exit is ResultRoute.BACK else None)

    def note(self, made: Made) -> Counted | Evaluated | None:
        """The trainer's news of the result."""
        push = self.item.push
        if isinstance(made, float):
            return Evaluated(push.step, push.microbatch, made)
        if isinstance(made, HeldOutResult):
            return Evaluated(push.step, push.microbatch, made.loss, made.scores)
        if self.call not in (StageCall.BACKWARD, StageCall.FINISH):
            return None
        return Counted(push.step, push.microbatch, push.attempt, self.counted, loss_in(made))


def sketch_of(
    plan: WorkPlan, sketcher: Sketcher, stage: Stage, inputs: WorkInputs, made: Made
) -> Sketch | None:
    """The sketch of a result, in a run with spot checks; None of a held-out batch."""
    push = plan.item.push
    if push.work == Work.EVALUATE:
        return None
    bundle = bundle_in(made)
    size = stage.gradient_norm if plan.call is StageCall.BACKWARD else 0.0
    if isinstance(made, LossResult):
        size = made.loss
    took, gave = sketcher.of(inputs.bundle), sketcher.of(bundle or {})
    return Sketch(push.step, push.microbatch, push.attempt, push.work, took, gave, size)


def plan(scheduler: Scheduler, item: WorkItem) -> WorkPlan:
    """The plan for an item that the worker has just taken."""
    spec = scheduler.spec(item)
    if item.work is Work.BACKWARD:
        forward = scheduler.held_from(item.key)
        assert forward is not None, "a backward is admitted only while its forward is held"
        return WorkPlan(item, StageCall.BACKWARD, spec, _back_if(spec.returning), forward)
    if not scheduler.last:
        kept = item.work is Work.FORWARD and scheduler.returns(item)
        return WorkPlan(
            item, StageCall.FORWARD if kept else StageCall.EVALUATE, spec, ResultRoute.ONWARD, item
        )
    if item.work is Work.EVALUATE:
        return WorkPlan(item, StageCall.EVALUATE, spec, ResultRoute.NOWHERE, item)
    return WorkPlan(item, StageCall.FINISH, spec, _back_if(spec.returning), item)


def _back_if(wanted: bool) -> ResultRoute:  # noqa: FBT001  a verb with its object
    return ResultRoute.BACK if wanted else ResultRoute.NOWHERE


def loss_in(made: Made) -> float | None:
    """The loss of a microbatch that was trained on, in the last stage; None in any other."""
    return made.loss if isinstance(made, LossResult) else None


def bundle_in(made: Made | None) -> Bundle | None:
    """The part of a result that goes to another stage; None if no part does."""
    if isinstance(made, LossResult):
        return made.gradient
    return made if isinstance(made, dict) else None


def refuse_stranger(
    push: Push, sender: bytes, trainer: PeerId | None, record: MemberRecord | None
) -> None:
    """Refuse pushes of others than the trainer and the stage beside; `record`: the sender's."""
    stage = push.stage + (1 if push.work == Work.BACKWARD else -1)
    if stage < 0:
        if trainer is not None and trainer.raw != sender:
            raise NotServing("the first stage takes microbatches from the trainer")
    elif record is None or record.stage != stage:
        raise Busy("the sender is not in the view here yet", UNKNOWN_RETRY_S)


def cut_short(push: Push, left: ClosedSum | None) -> SwarmError:
    """The error for the sender of a push if the session ends before the push is answered.

    NotServing is a promise that the microbatch is not here, so that another server may be asked. A
    sum outlives its session, so the promise holds only for what is not in it. `left`: the sum; None
    if something may be half added.
    """
    said = f"microbatch {push.microbatch}: {OVER}"
    unsure = left is None or push.microbatch in left.counted
    return Refused(said) if unsure else NotServing(said)


NOBODY_ANSWERS = "nothing comes from the servers of the next stage"


def refuse_cut_off(
    push: Push, onward: Sequence[MemberRecord], is_broken: Callable[[bytes], bool]
) -> None:
    """Refuse new microbatches while nothing comes from any of `onward`, the next stage's servers.

    So the sender chooses another server of this stage, and nothing is computed in vain. It is no
    `Busy`, for which a sender waits: one that reaches nobody else gives its push up soon.
    """
    cut_off = bool(onward) and all(is_broken(member.peer) for member in onward)
    if cut_off and push.work != Work.BACKWARD:
        raise NotServing(NOBODY_ANSWERS)


def undelivered(push: Push, reason: str, obstacle: Obstacle = Obstacle.ROAD) -> Undelivered:
    """The trainer's news of a microbatch that cannot go on from here."""
    return Undelivered(push.step, push.microbatch, push.attempt, reason[:REASON_CHARS], obstacle)


def not_computed(push: Push, error: SwarmError, failure: NotComputed) -> Undelivered:
    """The trainer's news of a microbatch that the stage has refused with `error`."""
    obstacle = Obstacle.NOT_FINITE if isinstance(error, NotFiniteHere) else Obstacle.WORK
    return undelivered(push, str(failure), obstacle)


def refusal_of(me: bytes, error: SwarmError) -> NotComputed:
    """The error for the sender instead of a receipt, which the trainer hears too: who and why."""
    return NotComputed(f"{PeerId(me).short} could not compute it: {error}"[:REASON_CHARS])


def load_of(period: Period, queued: int, recomputed: int, now_s: float) -> Load:
    """The work since the last report."""
    span_s = max(now_s - period.started_s, 1e-9)
    waits_s, computes_s = _mean(period.waits_s), _mean(period.computes_s)
    return Load(queued, waits_s, computes_s, period.counted / span_s, recomputed)


def _mean(values_s: list[float]) -> float:
    return sum(values_s) / len(values_s) if values_s else 0.0


Metas = tuple[TensorMeta, ...]


def metas_of(encoded: Sequence[EncodedTensor]) -> Metas:
    """The announcement of encoded tensors."""
    return tuple(each.meta for each in encoded)


class SizeForecast:
    """Foresees the announcement of the next bundle of a direction."""

    def __init__(self) -> None:
        self._last: Metas = ()
        self._steady = False

    @property
    def foreseen(self) -> Metas | None:
        """The announcement of the next bundle; None unless the last two had the same."""
        return self._last if self._steady else None

    def learn(self, metas: Metas) -> None:
        """Note how a bundle was encoded. An inline tensor holds values, so it is not foreseen."""
        self._steady = metas == self._last and all(travels_alone(meta) for meta in metas)
        self._last = metas


class Direction:
    """The bundles that go to one neighbour stage: their codecs and edges."""

    def __init__(
        self, usual: EdgeCodecs, in_force: Callable[[int], EdgeCodecs] | None = None
    ) -> None:
        """`in_force`: those of a step, where that is not always the usual ones."""
        self.codecs = in_force or (lambda _step: usual)
        self._forecasts: dict[tuple[str, ...], SizeForecast] = {}
        """By the codecs of a bundle: no more than the ladder has rungs for both directions."""
        self.edges = EdgeStates(len(usual.names))
        self.stateful = usual.stateful  # the coordinator chooses no codec that keeps state

    def forecast(self, codecs: EdgeCodecs) -> SizeForecast:
        """The forecast of bundles with these codecs."""
        return self._forecasts.setdefault(codecs.names, SizeForecast())

    def start(self, edge: EdgeKey, members: Sequence[MemberRecord]) -> EdgeTransfer | None:
        """Begin one more bundle for a peer; None if no codec keeps state."""
        if not self.stateful:
            return None
        return self.edges.edge(edge, map(edge_to, members)).start()


@dataclass(slots=True)
class _OpenEdge:
    """A bundle as it was encoded for one edge."""

    edge: EdgeKey
    transfer: EdgeTransfer | None
    encoded: list[EncodedTensor] | None = None


class OutgoingBundle:
    """The encodings of one bundle: one for all peers, or one for each where codecs keep state."""

    def __init__(self, direction: Direction, push: Push) -> None:
        """`push`: of the microbatch that the bundle is of."""
        self._direction = direction
        codecs = direction.codecs(push.step)
        self._names = codecs.names
        self._keys = codecs.keys(push.step, number_of(push.microbatch))
        self.forecast = direction.forecast(codecs)
        self._open: _OpenEdge | None = None

    def encoded_for(self, edge: EdgeKey) -> list[EncodedTensor] | None:
        """The encoding for a peer, if it is here; None: call `begin`, encode, `finish`."""
        there = self._open
        if there is None or (self._direction.stateful and there.edge != edge):
            return None
        return there.encoded

    def begin(
        self, edge: EdgeKey, members: Sequence[MemberRecord], bundle: Bundle
    ) -> list[TensorToEncode]:
        """The tensors to encode for a peer; forgets edges to peers that are not in `members`."""
        transfer = self._direction.start(edge, members)
        self._open = _OpenEdge(edge, transfer)
        names = self._names
        carried = transfer.carried if transfer else ((),) * len(names)
        return list(map(TensorToEncode, bundle.values(), names, self._keys, carried))

    def finish(self, encoded: list[EncodedTensor]) -> list[EncodedTensor]:
        """Keep the encoding, and foresee the next from it."""
        assert self._open is not None, "begin comes before finish"
        self._open.encoded = encoded
        self.forecast.learn(metas_of(encoded))
        return encoded

    def taken(self) -> None:
        """The peer has computed it."""
        there, self._open = self._open, None
        if there is not None and there.transfer is not None and there.encoded is not None:
            there.transfer.taken(there.encoded)

    def failed(self, error: Exception) -> None:
        """The push failed: give the edge its state back if the peer surely has nothing."""
        if self._open is None or self._open.transfer is None:
            return
        if isinstance(error, Refused | DialFailed | Unencodable):
            self._open.transfer.refused()
        self._open = None  # the next try encodes anew, with the state that the edge then has


def edge_to(member: MemberRecord) -> EdgeKey:
    """The edge to a peer's incarnation."""
    return member.peer, member.incarnation


def handed(push: Push, to: MemberRecord) -> Handed:
    """The trainer's news before the bytes go to the next server."""
    return Handed(push.step, push.microbatch, push.attempt, to.peer, to.incarnation)


WAIT_TOLD_S = 0.5  # a grant takes a round trip; others are waited for less than a stall takes


class GrantWait:
    """A microbatch that is to be pushed to the next stage: when the trainer hears that it waits.

    A server that was asked may be dead. Else the time until that is found would count as slowness
    of this server, which has computed long ago.
    """

    def __init__(self) -> None:
        self._asked: Handed | None = None
        self._due_s: float | None = None

    def on_request(self, asked: Handed) -> None:
        """A server is asked for a grant; `asked`: what the trainer hears when it gives one."""
        self._asked = asked

    def on_result(self, now_s: float) -> None:
        """The microbatch is computed."""
        self._due_s = now_s + WAIT_TOLD_S

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`; None: never."""
        return self._due_s

    def on_deadline(self, now_s: float) -> Handed | None:
        """Return what to tell the trainer now, once, if a server was asked by now."""
        if self._due_s is None or now_s < self._due_s:
            return None
        self._due_s = now_s + WAIT_TOLD_S if self._asked is None else None
        return replace(self._asked, granted=False) if self._asked is not None else None

    def on_end(self) -> None:
        """A server takes it, or nobody does: there is nothing more to say."""
        self._due_s = None
