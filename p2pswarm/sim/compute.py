"""SEAM 3 simulated: a stage that spends virtual seconds and counts microbatches.

The gradient is a count: microbatch m of a step adds 1 to element m of the sum. If the reduced
gradient is all ones, every microbatch was counted exactly once in this stage. In a tied run the two
ends of the model have as many elements in common, which have to be all twos: one of each end.
Activations have their true size, and take time on the links. They are zeros; a processor that is
wrong gives ones, and so does one that computes with these.

Shapes:  as `models/compute/base.py`; sum_N has N = microbatches of a step.
Errors:  AssertionError when a microbatch was not counted exactly once, or a piece does not follow a
         commit: the protocol has a bug then.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import asyncio
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.data.samples.corpus import Corpus, Tokens
from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.base import BackwardSpec, Engine, Key, LossResult, Update
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.run.averaging.base import Sums
from p2pswarm.run.averaging.shards import Span
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import TORCH, Tensor
from p2pswarm.tensors.codecs.bundle import BundleKey, BundleSpec
from p2pswarm.tensors.codecs.meta import Dtype, TensorLayout
from p2pswarm.tensors.state_tree import piece_hash, root_of

T = TypeVar("T")

NUMBER_BYTES = 8  # a microbatch's number, at the start of its tokens
SUM_ITEM_BYTES = 8  # of float64
BACKWARD_SHARE = 2.0  # a backward takes twice a forward's time
FIRST_LOSS = math.log(256)  # the loss of a guess among 256 bytes
DECAY_STEPS = 50.0  # so the reported loss falls; nothing depends on it
PIECE_BYTES = 256 * 1024
ENDS = 2  # of a model, which add to the elements that they have in common
HEAD_BYTES = 16  # of a piece: its stage and its version
LOOK_S = 0.25  # between two looks of a computation at a processor that is slow


class NumberedCorpus(Corpus):
    """Microbatches that hold only their number."""

    __slots__ = ()

    def microbatch(self, number: int) -> Tokens:
        """tokens_BS of zeros, but for the number in the first ones."""
        tokens_BS = np.zeros((self.rows, self.sequence_length + 1), np.uint8)
        tokens_BS[0, :NUMBER_BYTES] = np.frombuffer(number.to_bytes(NUMBER_BYTES), np.uint8)
        return tokens_BS

    def held_out_batch(self, number: int) -> Tokens:
        """As `microbatch`."""
        return self.microbatch(number)


def numbered_corpus(run: RunConfig) -> NumberedCorpus:
    """The corpus of a simulated run."""
    if run.model.sequence_length < NUMBER_BYTES:
        raise ValueError(f"a sequence of {run.model.sequence_length} tokens holds no number")
    nothing = np.zeros(0, np.uint8)
    shape = run.batch.rows, run.model.sequence_length
    return NumberedCorpus(nothing, nothing, 1, run.seed, *shape)


def number_in(tokens_BS: Tensor) -> int:
    """The number of the microbatch that these tokens are."""
    return int.from_bytes(bytes(tokens_BS[0, :NUMBER_BYTES].tolist()))


class Processor:
    """One thread of compute in virtual time: implements `Compute`."""

    def __init__(self, speed: float) -> None:
        """`speed`: relative to the machine that `Cost` is about."""
        self.speed = speed
        self.busy_s = 0.0
        """Seconds that it has computed so far."""
        self.worked: Callable[[float, float], None] = lambda _begun_s, _ended_s: None
        """Called with the begin and the end of each computation."""
        self.slowness = 1.0
        """So many times as long does all take now, as beside other programs."""
        self._owed_s = 0.0
        self._turn = asyncio.Lock()

    async def __call__(self, work: Callable[[], T]) -> T:
        """Do `work`; its time passes before its result is returned."""
        async with self._turn:
            self._owed_s = 0.0
            result = work()
            taken_s = self._owed_s / self.speed
            self.busy_s += taken_s
            if taken_s:
                begun_s = asyncio.get_running_loop().time()
                await self._work(taken_s)
                self.worked(begun_s, begun_s + taken_s)
            return result

    async def _work(self, left_s: float) -> None:
        """Let the time of a computation pass; while it is slow, look now and then if it still is.

        `left_s`: of an undisturbed processor.
        """
        while (slowness := self.slowness) > 1.0 and left_s * slowness > LOOK_S:
            await asyncio.sleep(LOOK_S)
            left_s -= LOOK_S / slowness
        await asyncio.sleep(left_s * slowness)

    def spend(self, seconds: float) -> None:
        """Add to the time of the present work: seconds on a machine of speed 1."""
        self._owed_s += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a stage."""

    forward_s: float = 0.05
    """Seconds for one microbatch on a machine of speed 1."""
    state_bytes: int = 1024 * 1024
    """Weights and optimizer state of one stage: what a newcomer downloads."""
    gradient_bytes: int = 0
    """The gradient of one stage, which is averaged; at the least a number for each microbatch."""
    shares: tuple[float, ...] = ()
    """The share of each stage, over the mean of the stages; empty: all have the same."""
    backward_share: float = BACKWARD_SHARE
    """Of a forward's time: a frozen weight has no gradient, so there it is one."""

    @property
    def both_s(self) -> float:
        """Forward and backward."""
        return (1 + self.backward_share) * self.forward_s

    def of(self, stage: int) -> "Cost":
        """The cost of one stage."""
        share = self.shares[stage] if self.shares else 1.0
        return Cost(
            forward_s=share * self.forward_s,
            state_bytes=round(share * self.state_bytes),
            gradient_bytes=round(share * self.gradient_bytes),
            backward_share=self.backward_share,
        )


class CountingState:
    """Implements `StateMemory`: each piece is its stage and version, filled up."""

    tensors = 1

    def __init__(self, stage: int, state_bytes: int, microbatches: int, tied: Span | None) -> None:
        """`microbatches`: the elements of a gradient that count one each.

        `tied`: the elements to which both ends of the model add.
        """
        self._stage = stage
        self._microbatches = microbatches
        self._tied = tied
        self._bytes = max(HEAD_BYTES, state_bytes)
        self.pieces = -(-self._bytes // PIECE_BYTES)
        self._versions = [0] * self.pieces

    @property
    def version(self) -> int:
        """The version of the whole state; the oldest piece's while it comes."""
        return min(self._versions)

    def become(self, version: int) -> None:
        """All pieces are of one version now."""
        self._versions = [version] * self.pieces

    def hashes(self) -> tuple[bytes, ...]:
        """The hash of each piece."""
        return tuple(
            _hash_of(self._stage, version, self.part_bytes(0, piece))
            for piece, version in enumerate(self._versions)
        )

    def digest(self) -> bytes:
        """The digest of the state: replicas of one version have the same."""
        return root_of(self.hashes())

    def part_bytes(self, tensor: int, piece: int) -> int:
        """The size of a piece."""
        del tensor
        rest = self._bytes - piece * PIECE_BYTES
        return max(HEAD_BYTES, min(PIECE_BYTES, rest))

    def read(self, tensor: int, piece: int) -> memoryview:
        """Copy a piece."""
        nbytes = self.part_bytes(tensor, piece)
        return memoryview(_content(self._stage, self._versions[piece], nbytes))

    def write(self, piece: int, parts: Sequence[memoryview], version: int = 0) -> None:
        """Put a piece in its place; it says its version itself."""
        del version
        (part,) = parts
        if part.nbytes != self.part_bytes(0, piece):
            raise BadMessage(f"{part.nbytes} bytes are no piece {piece}")
        self._versions[piece] = int.from_bytes(part[HEAD_BYTES // 2 : HEAD_BYTES])

    def gradient(self, reduced: Sums, piece: int) -> Tensor:
        """Return how often each microbatch was counted; the same for every piece.

        In a tied run also how often on each of its two ends.
        """
        del piece
        assert isinstance(reduced, TorchSums)
        counts = reduced.reduced_N[: self._microbatches].clone()
        if self._tied is None:
            return counts
        both = reduced.reduced_N[self._tied.start : self._tied.stop]
        return counts.new_tensor([*counts.tolist(), *(both / ENDS).tolist()])

    def follow(self, piece: int, gradient: Tensor, update: Update) -> None:
        """Apply a commit to one piece."""
        before = update.number - 1
        assert self._versions[piece] == before, f"{update} on a piece of {self._versions[piece]}"
        assert all(count == 1 for count in gradient.tolist()), "counted otherwise than once"
        self._versions[piece] = update.number


class CountingWeights:
    """Implements `Weights`: how often each microbatch was counted, and the version."""

    spread = False
    base_roots: tuple[bytes, ...] = ()

    def __init__(self, run: RunConfig, stage: int, cost: Cost) -> None:
        self._microbatches = run.batch.microbatches
        length = max(self._microbatches, cost.gradient_bytes // SUM_ITEM_BYTES)
        self._tied: Span | None = None
        if run.tied_ends is not None and stage in run.tied_ends:
            self._tied = Span(length, length + self._microbatches)
        self.state = CountingState(stage, cost.state_bytes, self._microbatches, self._tied)
        whole = length if self._tied is None else self._tied.stop
        self._delay = run.delay
        self._sums = [_zeros((whole,), Dtype.FLOAT64) for _ in range(1 + run.delay)]
        """Of even steps, and with a delay of odd ones."""
        self._stage = stage
        self.cost = cost
        self.spoilt: set[int] = set()
        """The microbatches of the sum that were computed wrong, here or elsewhere."""
        self._all_checked = run.spot_check_share == 1.0

    @property
    def version(self) -> int:
        """The version of the weights."""
        return self.state.version

    def count(self, number: int, *, off: bool) -> None:
        """A microbatch is in the sum of its step, perhaps `off`."""
        step, place = divmod(number, self._microbatches)
        assert self.version <= step <= self.version + self._delay, f"{number} at {self.version}"
        sum_N = self._sum_of(step)
        sum_N[place] += 1
        if self._tied is not None:
            sum_N[self._tied.start + place] += 1
        if off:
            self.spoilt.add(number)

    def reset(self, *, draw: bool) -> None:
        """Empty the sums; `draw`: back to version 0."""
        for sum_N in self._sums:
            sum_N.zero_()
        self.spoilt.clear()
        if draw:
            self.state.become(0)

    def reduction(self, step: int = 0) -> TorchSums:
        """Give the sum of a step, and memory for its average."""
        return TorchSums(self._sum_of(step), "raw", tied=self._tied)

    def apply(self, reduced: Sums, update: Update) -> None:
        """Do one step; every microbatch must have been counted exactly once."""
        counts = self.state.gradient(reduced, 0).tolist()
        wrong = {number: count for number, count in enumerate(counts) if count != 1}
        assert not wrong, f"stage {self._stage}, version {update.number}: counted {wrong}"
        assert not (self._all_checked and self.spoilt), f"stage {self._stage} adds {self.spoilt}"
        self.state.become(update.number)
        self._sum_of(update.number - 1).zero_()
        self.spoilt.clear()

    def _sum_of(self, step: int) -> Tensor:
        return self._sums[step % len(self._sums)]

    def tied_digest(self) -> bytes:
        """See `Weights`: the version is all that a simulated tensor holds."""
        return self.version.to_bytes(8) if self._tied is not None else b""

    def hashes(self) -> tuple[bytes, ...]:
        """The hashes of the state's pieces."""
        return self.state.hashes()


class SimStage:
    """Implements `Stage`."""

    def __init__(
        self,
        run: RunConfig,
        stage: int,
        tally: CountingWeights,
        spend: Callable[[float], None],
        counted: Callable[[int, int], None],
        wrong: Callable[[], bool],
    ) -> None:
        """`counted` is told the stage and the number of each microbatch that enters the sum.

        `wrong` is asked at every call whether its result is to be wrong.
        """
        self.recomputed = 0
        self.gradient_norm = 0.0
        self._wrong = wrong
        self._stage = stage
        self._counted = counted
        self._last = stage == run.stages - 1
        self._tally = tally
        self._spend = spend
        self._cost = tally.cost
        self._kept: dict[Key, tuple[int, bool]] = {}
        right = _zeros(activation_layout(run).shape, activation_layout(run).dtype)
        self._gives = {False: {"x": right}, True: {"x": right + 1}}

    def forward(self, key: Key, tokens_BS: Tensor, given: Bundle) -> Bundle:
        """Give the next stage's x."""
        self._spend(self._cost.forward_s)
        off = self._off(given)
        self._kept[key] = number_in(tokens_BS), off
        return self._gives[off]

    def backward(self, key: Key, gradient: Bundle, spec: BackwardSpec) -> Bundle:
        """Give the gradient of this stage's x, if it is wanted."""
        kept = self._kept.pop(key, None)
        if kept is None:
            raise NotServing(f"nothing is kept for {key}")
        self._spend(self._cost.backward_share * self._cost.forward_s)
        number, forward_off = kept
        off = self._off(gradient) or forward_off
        self._add(number, spec, off=off)
        return self._gives[off] if spec.returning else {}

    def finish(self, tokens_BS: Tensor, given: Bundle, spec: BackwardSpec) -> LossResult:
        """Forward, loss and backward in one."""
        self._spend(self._cost.both_s)
        off = self._off(given)
        self._add(number_in(tokens_BS), spec, off=off)
        return LossResult(self._loss() + off, self._gives[off] if spec.returning else {})

    def evaluate(
        self, tokens_BS: Tensor, given: Bundle, *, training: bool = False
    ) -> Bundle | float:
        """Give the next stage's x, or the loss."""
        del tokens_BS, training
        self._spend(self._cost.forward_s)
        return self._loss() if self._last else self._gives[self._off(given)]

    def drop(self, keys: Iterable[Key] | None) -> None:
        """Forget what is kept."""
        for key in list(self._kept if keys is None else keys):
            self._kept.pop(key, None)

    def _off(self, given: Bundle) -> bool:
        """Return whether the result is wrong: this processor is, or one before it was."""
        return self._wrong() or bool(given and given["x"].reshape(-1)[0].item())

    def _add(self, number: int, spec: BackwardSpec, *, off: bool) -> None:
        self.gradient_norm = 2.0 if off else 1.0
        if spec.may_add():
            self._tally.count(number, off=off)
            self._counted(self._stage, number)

    def _loss(self) -> float:
        return FIRST_LOSS * math.exp(-self._tally.version / DECAY_STEPS)


def sim_engine(
    run: RunConfig,
    stage: int,
    cost: Cost,
    processor: Processor,
    counted: Callable[[int, int], None] = lambda _stage, _number: None,
    wrong: Callable[[], bool] = lambda: False,
) -> Engine:
    """Stage `stage` of a run on a simulated processor; `counted` and `wrong` as for `SimStage`."""
    cost = cost.of(stage)
    tally = CountingWeights(run, stage, cost)
    spec = BundleSpec((BundleKey("x", activation_layout(run), differentiable=True),))
    sim_stage = SimStage(run, stage, tally, processor.spend, counted, wrong)
    return Engine(
        sim_stage,
        tally,
        tally.state,
        takes=spec if stage else BundleSpec(),
        gives=spec if stage < run.stages - 1 else BundleSpec(),
        odd=sim_stage if run.delay else None,
    )


def activation_layout(run: RunConfig) -> TensorLayout:
    """The tensor that crosses between two stages, of the same size as a transformer's."""
    shape = run.batch.rows, run.model.sequence_length, run.model.crossing_width
    return TensorLayout(Dtype[run.model.dtype.upper()], shape)


def _zeros(shape: tuple[int, ...], dtype: Dtype) -> Tensor:
    return Tensor().new_zeros(shape, dtype=TORCH[dtype])


def _content(stage: int, version: int, nbytes: int) -> bytes:
    half = HEAD_BYTES // 2
    return (stage.to_bytes(half) + version.to_bytes(half)).ljust(nbytes, b"\0")


@functools.lru_cache(maxsize=1024)
def _hash_of(stage: int, version: int, nbytes: int) -> bytes:
    return piece_hash([memoryview(_content(stage, version, nbytes))])
