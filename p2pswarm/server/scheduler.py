"""The rules of a stage server: what it admits, in which order it computes, what it has counted.

Errors:  Busy when the queue is full; NotServing for what is of another session, step or attempt;
         BadMessage for tensors that do not fit, before memory is set aside for them; Refused when
         the trainer's copy of the ledger differs from ours.
Source:  docs/training.md.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, Busy, NotServing, Refused
from p2pswarm.base.estimates import Ema
from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.base import BackwardSpec, CountPermit, Key
from p2pswarm.models.compute.bundle_spec import StageCodecs
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.microbatch import CHECK_BASE, Push, number_of
from p2pswarm.run.messages.step import Fence, Reduce
from p2pswarm.server.boundary_cache import (
    BoundaryCache,
    Dropped,
    HeldInput,
    KeptAnswer,
    Period,
    WorkItem,
)
from p2pswarm.server.commit_log import ClosedSum
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.edge_codecs import EdgeCodecs, Keys
from p2pswarm.tensors.codecs.meta import Dtype
from p2pswarm.tensors.codecs.registry import NO_KEY

TOKENS = frozenset({Dtype.UINT8, Dtype.INT32, Dtype.INT64})
QUEUE_MAX = 32  # forward passes queued or on their way here: 8 senders' windows of 4
HELD_MAX = 512  # inputs that wait for their gradient
EVALUATIONS_MAX = 8  # they come four at a time, and are computed last
RETRY_FIRST_S = 0.05  # before anything was measured
RETRY_MIN_S, RETRY_MAX_S = 0.01, 5.0
SMOOTHING = 0.1  # of the measured service time
EVERYTHING = 2**64  # no microbatch has that number
RANK = {Work.BACKWARD: 0, Work.FORWARD: 1, Work.EVALUATE: 2}
"""The order of work: a gradient frees memory here and feeds the stage below."""


@dataclass(frozen=True, slots=True)
class WorkInputs:
    """The tensors of one push."""

    tokens: Tensor | None
    """None for a gradient: the stage has kept them."""
    bundle: Bundle


@dataclass(frozen=True, slots=True)
class ExpectedTensors:
    """The tensors of every push to one stage."""

    tokens_shape: tuple[int, int]
    """Rows, and one token more than the sequence length."""
    takes: Callable[[int], EdgeCodecs]
    """Of a step."""
    gradient: Callable[[int], EdgeCodecs]
    """Of what the stage gives, in a step."""

    def check(self, push: Push) -> None:
        """Raise BadMessage unless its tensors are what its work needs in its step."""
        metas = push.tensors
        if push.work == Work.BACKWARD:
            self.gradient(push.step).check(metas)
            return
        if not metas:
            raise BadMessage("nothing announced where tokens are due")
        tokens = metas[0]
        if tokens.dtype not in TOKENS or tokens.shape != self.tokens_shape:
            raise BadMessage(
                f"tokens of dtype {tokens.dtype} and shape {tokens.shape} where whole numbers of "
                f"{self.tokens_shape} are due"
            )
        self.takes(push.step).check(metas[1:])

    def inputs(self, push: Push, tensors: Sequence[Tensor]) -> WorkInputs:
        """Name the tensors of a push that was checked."""
        if push.work == Work.BACKWARD:
            names = self.gradient(push.step).spec.names
            return WorkInputs(None, dict(zip(names, tensors, strict=True)))
        names = self.takes(push.step).spec.names
        return WorkInputs(tensors[0], dict(zip(names, tensors[1:], strict=True)))

    def keys(self, push: Push) -> Keys:
        """The keys by which the tensors of a push that was checked are rounded."""
        of = push.step, number_of(push.microbatch)
        if push.work == Work.BACKWARD:
            return self.gradient(push.step).keys(*of)
        return NO_KEY, *self.takes(push.step).keys(*of)


def expected_tensors(run: RunConfig, codecs: StageCodecs) -> ExpectedTensors:
    """The announcement of pushes to a stage with these codecs."""
    shape = run.batch.rows, run.model.sequence_length + 1
    return ExpectedTensors(shape, codecs.takes, codecs.gradient)


class Scheduler:
    """One incarnation of a server: its stage, its queue and its ledger, one version at a time.

    The scheduler is told what comes (a push, its bytes, a result, a fence, a commit), and answers
    what to do. It alone decides what enters the gradient sum. A microbatch enters the ledger at
    most once, and never after a fence of its attempt was answered without it. What is being
    computed meanwhile has a permit to be counted. A fence withdraws it, or learns that the
    gradient is in the sum already; so its answer never waits for the compute thread.

    From `Reduce` until the next fence or commit nothing more of the step is counted: the members
    of the stage are averaging these sums.

    With a delay two steps are computed at a time: that of the version, and the next, whose ledger
    goes on when a commit makes the next version (docs/delay.md).
    """

    def __init__(
        self,
        stage: int,
        stages: int,
        incarnation: int,
        microbatches: int,
        expected: ExpectedTensors,
        kept: BoundaryCache | None = None,
        delay: int = 0,
    ) -> None:
        self.expected = expected
        self._delay = delay
        self.kept = kept or BoundaryCache(stage)
        """The results for the stages beside this one, of what is in the sum."""
        self.stage = stage
        self.incarnation = incarnation
        self.last = stage == stages - 1
        self._microbatches = microbatches
        self.closing = False
        """True while leaving: gradients are taken, new microbatches are not."""
        self.version: int | None = None
        """None until the weights are here."""
        self._ledger: set[int] = set()
        self._losses: dict[int, float] = {}
        self._fences: dict[tuple[int, int], int] = {}
        """(step, microbatch) -> attempts up to this one are over."""
        self._coming: list[WorkItem] = []
        """Granted; their bytes are on the way."""
        self._queue: dict[WorkItem, float] = {}
        """Each with the time when its bytes were here."""
        self.in_hand: WorkItem | None = None
        """The item that is being computed."""
        self._permit = CountPermit()
        """Of what is in hand."""
        self._reducing = False
        """True if the sum is being averaged: nothing of the step is taken up."""
        self._held: dict[Key, HeldInput] = {}
        self._service = Ema(SMOOTHING)
        self._period = Period(0.0)

    @property
    def bitmap(self) -> bytes:
        """The ledger of the version's step as the protocol writes it."""
        step = self.version or 0
        counted = (m for m in self._in_sum() if m < (step + 1) * self._microbatches)
        return bitmap_of(counted, step, self._microbatches)

    @property
    def adding(self) -> bool:
        """Return whether the compute thread may be adding to the sum just now."""
        return self._permit.taken and not self._permit.whole

    def closed_sum(self) -> ClosedSum | None:
        """The sum that is left; None if an adding has failed, of which a part may be in it."""
        if self.version is None or self.adding:
            return None
        counted = frozenset(self._in_sum())
        return ClosedSum(self.incarnation, self.version, counted, dict(self._losses), self.kept)

    def resume(self, kept: ClosedSum) -> None:
        """The sum was kept from the incarnation before."""
        self._ledger.update(kept.counted)
        self._losses.update(kept.losses)
        self.kept.resume(kept.boundaries)

    @property
    def idle(self) -> bool:
        """Return whether nothing is here that the end of this incarnation would void."""
        return not (self._ledger or self._held or self.in_hand or self.queued())

    def spec(self, item: WorkItem) -> BackwardSpec:
        """The purpose of a backward pass of the item here."""
        push = item.push
        counting = self.stage in push.counting and push.microbatch not in self._ledger
        returning = any(stage < self.stage for stage in push.counting)
        number = number_of(push.microbatch)
        return BackwardSpec(counting, returning, self._permit, push.step, number)

    def returns(self, item: WorkItem) -> bool:
        """Return whether the gradient of a forward will come back here."""
        return any(stage <= self.stage for stage in item.push.counting)

    def admit(self, push: Push, sender: bytes) -> WorkItem:
        """Admit a push, so that its bytes may come; raises the reason if it is refused."""
        work = Work(push.work)
        if push.stage != self.stage or push.incarnation != self.incarnation:
            raise NotServing(f"stage {push.stage} of incarnation {push.incarnation} is not here")
        if self.version is None or not self._is_near(push.step):
            raise NotServing(f"step {push.step}: the weights here are of version {self.version}")
        item = WorkItem(push, sender, work)
        if self._fenced(item):
            raise NotServing(f"attempt {item.push.attempt} of {item.push.microbatch} is over")
        here = (*self._all(), self.in_hand) if self.in_hand else self._all()
        if any((t.work, t.key, t.push.step) == (work, item.key, push.step) for t in here):
            raise NotServing(f"microbatch {push.microbatch} is here already")
        self._refuse_unfit(item)
        if work is not Work.BACKWARD:
            self._refuse_full(work)
        self._coming.append(item)
        return item

    def arrived(self, item: WorkItem, now_s: float) -> None:
        """Queue an item whose bytes are here. NotServing if it was given up meanwhile."""
        if item not in self._coming:
            raise NotServing(f"microbatch {item.push.microbatch} was given up")
        self._coming.remove(item)
        self._queue[item] = now_s

    def answered(self, item: WorkItem) -> KeptAnswer | None:
        """The answer that an item which has arrived gets without computing; it waits no more."""
        answer = self.kept.answer(item.push) if self._is_live(item.push.step) else None
        if answer is not None:
            del self._queue[item]
        return answer

    def withdraw(self, item: WorkItem) -> None:
        """Forget an item whose bytes will not come."""
        if item in self._coming:
            self._coming.remove(item)

    def take(self, now_s: float) -> WorkItem | None:
        """The next item to compute; None while there is none, or something is in hand."""
        ready = [t for t in self._queue if self._is_due(t)]
        if self.in_hand is not None or not ready:
            return None
        # of the first step and the best rank the oldest, because the step ends with its last
        item = min(ready, key=lambda t: (t.push.step, RANK[t.work], t.push.microbatch % CHECK_BASE))
        self.in_hand, self._permit = item, CountPermit()
        if item.push.microbatch >= CHECK_BASE:  # it computes all, and adds nothing
            self._permit.withdraw()
        self._period.waits_s.append(now_s - self._queue.pop(item))
        return item

    def done(
        self, item: WorkItem, compute_s: float, *, counted: bool, loss: float | None = None
    ) -> bool:
        """Enter an item that was computed. False if its result is to be thrown away."""
        self._end_item(item, compute_s)
        if not self._is_live(item.push.step):
            return False
        if counted:
            self._ledger.add(item.push.microbatch)
            self._period.counted += 1
            if loss is not None:
                self._losses[item.push.microbatch] = loss
        if item.work is Work.BACKWARD:
            self._held.pop(item.key, None)
        if self._fenced(item):
            return False
        if item.work is Work.FORWARD and not self.last and self.returns(item):
            self._held[item.key] = HeldInput(item)
        return True

    def failed(self, item: WorkItem, compute_s: float) -> None:
        """Forget an item that could not be computed; the sum is as it was."""
        self._end_item(item, compute_s)
        self._held.pop(item.key, None)

    def handed(self, key: Key, peer: bytes) -> None:
        """Remember who has a microbatch now, and may send its gradient."""
        if key in self._held:
            self._held[key].next_peer = peer

    def held_from(self, key: Key) -> WorkItem | None:
        """The forward of a microbatch that waits for its gradient."""
        held = self._held.get(key)
        return held.item if held else None

    def fence(self, fence: Fence) -> Dropped:
        """Start and count nothing more for these attempts; `counted` tells what was before."""
        self._check_step(fence.incarnation, fence.step)
        if fence.step == self.version:
            self._reducing = False
        for work in fence.work:
            mark = (fence.step, work.microbatch)
            self._fences[mark] = max(work.attempt, self._fences.get(mark, -1))
        if self.in_hand is not None and self._fenced(self.in_hand):
            self._permit.withdraw()
        in_hand = self.in_hand.key if self.in_hand else None
        held = [h.item for h in self._held.values() if h.item.key != in_hand]
        keys = [item.key for item in held if self._fenced(item)]
        return self._drop([t for t in self._all() if self._fenced(t)], keys)

    def counted(self, fence: Fence) -> tuple[int, ...]:
        """Return which of the fenced microbatches are in the sum."""
        if not self._is_live(fence.step):
            return ()
        counted = self._in_sum()
        return tuple(w.microbatch for w in fence.work if w.microbatch in counted)

    def reduce(self, order: Reduce, me: bytes) -> None:
        """Count nothing more of this step; NotServing or Refused unless the order fits the sum."""
        self._check_step(order.incarnation, order.step)
        if me not in order.group:
            return
        if order.step != self.version:
            raise NotServing(f"step {order.step}: the weights here are of version {self.version}")
        self._reducing = True
        if self.in_hand is not None and self.in_hand.push.step == order.step:
            self._permit.withdraw()
        if order.counted.rstrip(b"\0") != self.bitmap.rstrip(b"\0"):
            raise Refused(f"the ledger of step {order.step} differs here")

    def moved_to(self, version: int) -> Dropped:
        """Begin a new step: the weights are of `version` now.

        Its ledger is empty, but for what a delay let be counted before.
        """
        self.version, self._reducing = version, False
        ahead = self._delay and self.in_hand is not None and self.in_hand.push.step >= version
        if not ahead:
            self._permit.withdraw()
        first = version * self._microbatches if self._delay else EVERYTHING
        self._ledger = {m for m in self._ledger if m >= first}
        self._losses = {m: loss for m, loss in self._losses.items() if m >= first}
        self.kept.drop_before(first)
        self._fences = {mark: a for mark, a in self._fences.items() if mark[0] >= version}
        old = [t for t in self._all() if t.push.step < version]
        held = [key for key, held in self._held.items() if held.item.push.step < version]
        return self._drop(old, held)

    def close(self) -> None:
        """This incarnation is over: what is in hand is not counted."""
        self._permit.withdraw()

    def retry_after_s(self) -> float:
        """Time until the queue is likely shorter: that of one forward."""
        service_s = RETRY_FIRST_S if self._service.value is None else self._service.value
        return min(max(service_s, RETRY_MIN_S), RETRY_MAX_S)

    def queued(self) -> int:
        """The number of items that wait, their bytes here or not."""
        return len(self._coming) + len(self._queue)

    def coming(self) -> int:
        """The number of those whose bytes are not here."""
        return len(self._coming)

    def held_by(self) -> dict[Key, bytes]:
        """Return who has each microbatch whose gradient is to come back here, as far as known."""
        return {
            key: held.next_peer for key, held in self._held.items() if held.next_peer is not None
        }

    def period(self, now_s: float) -> Period:
        """The work since the last call."""
        done, self._period = self._period, Period(now_s)
        return done

    def _is_live(self, step: int) -> bool:
        """Return whether a step is computed with the weights that are here."""
        return self.version is not None and self.version <= step <= self.version + self._delay

    def _is_near(self, step: int) -> bool:
        """Return whether a step is computed now, or after the commit that is on its way."""
        return self._is_live(step) or self._is_live(step - 1)

    def _is_due(self, item: WorkItem) -> bool:
        """Return whether an item may be computed now."""
        if item.push.step == self.version:
            return item.work is Work.EVALUATE or not self._reducing
        return item.work is not Work.EVALUATE and self._is_live(item.push.step)

    def _in_sum(self) -> set[int]:
        """The ledger, and what the compute thread adds to the sum just now."""
        item = self.in_hand
        if item is None or not self._is_live(item.push.step) or not self._permit.taken:
            return self._ledger
        return self._ledger | {item.push.microbatch}

    def _all(self) -> Iterator[WorkItem]:
        yield from self._coming
        yield from self._queue

    def _refuse_unfit(self, item: WorkItem) -> None:
        push, held = item.push, self._held.get(item.key)
        self.expected.check(push)
        if item.work is Work.BACKWARD:
            if held is None or held.next_peer != item.sender:
                raise NotServing(f"no gradient of microbatch {push.microbatch} is due from you")
            return
        if self.closing:
            raise NotServing("this server is leaving")
        if held is not None:
            raise NotServing(f"microbatch {push.microbatch} is here already")
        first = push.step * self._microbatches
        number = push.microbatch % CHECK_BASE
        mine = first <= number < first + self._microbatches and push.microbatch < 2 * CHECK_BASE
        if item.work is Work.FORWARD and not mine:
            raise BadMessage(f"microbatch {push.microbatch} in step {push.step}")

    def _refuse_full(self, work: Work) -> None:
        same = sum(t.work is work for t in self._all())
        full = same >= (QUEUE_MAX if work is Work.FORWARD else EVALUATIONS_MAX)
        if full or (work is Work.FORWARD and len(self._held) >= HELD_MAX):
            raise Busy(f"{same} microbatches are queued here", self.retry_after_s())

    def _fenced(self, item: WorkItem) -> bool:
        mark = (item.push.step, item.push.microbatch)
        return item.push.attempt <= self._fences.get(mark, -1)

    def _end_item(self, item: WorkItem, compute_s: float) -> None:
        assert self.in_hand is item, "one microbatch is computed at a time"
        self.in_hand = None
        self._period.computes_s.append(compute_s)
        if item.work is Work.FORWARD:
            self._service.add(compute_s)

    def check_incarnation(self, incarnation: int) -> None:
        """Raise NotServing for an order to another incarnation."""
        if incarnation != self.incarnation:
            raise NotServing(f"incarnation {incarnation} is over, this is {self.incarnation}")

    def _check_step(self, incarnation: int, step: int) -> None:
        self.check_incarnation(incarnation)
        if self.version is not None and not self._is_near(step):
            raise NotServing(f"step {step}: the weights here are of version {self.version}")

    def _drop(self, items: list[WorkItem], keys: list[Key]) -> Dropped:
        self._coming = [t for t in self._coming if t not in items]
        self._queue = {t: at_s for t, at_s in self._queue.items() if t not in items}
        for key in keys:
            self._held.pop(key, None)
            self.kept.drop(key)
        return Dropped(tuple(items), tuple(keys))


def bitmap_of(counted: Iterable[int], step: int, microbatches: int) -> bytes:
    """The ledger of a step as the protocol writes it: bit i (little-endian) is microbatch i."""
    bits = sum(1 << (m - step * microbatches) for m in counted)
    return bits.to_bytes(-(-microbatches // 8), "little")
