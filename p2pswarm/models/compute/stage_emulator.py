"""A stage that takes the stated time and no processor; its sums, weights and bundles are real.

A rehearsal of a run with more machines than there are: each server rests for as long as its blocks
would compute. What crosses between stages has its true size and never changes, the weights are the
model's, and the gradient of a microbatch is a one whose place its tokens choose. So all that is
averaged, committed, hashed and downloaded is real; and ones add up to the same sum in any order, so
that the weights tell, bit for bit, whether each microbatch was counted once (docs/simulation.md).
"""
# ruff: noqa: D102, N803, N806  `Stage` documents its methods; shapes end the names

import hashlib
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from p2pswarm.base.errors import NotServing
from p2pswarm.models.base import Bundle
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.base import BackwardSpec, Engine, Key, LossResult
from p2pswarm.models.compute.bundle_spec import engine_bundles
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.tokens import checked_tokens
from p2pswarm.models.compute.torch_device import computing, setting_up
from p2pswarm.models.compute.torch_stage import require_finite
from p2pswarm.models.compute.torch_weights import TorchWeights
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import TORCH, bytes_of
from p2pswarm.tensors.codecs.bundle import BundleSpec
from p2pswarm.tensors.state_tree import PIECE_VALUES

BACKWARD_SHARE = 2.0  # a backward takes twice a forward's time, as in `sim/compute.py`
PLACE_BYTES = 8  # of the hash that chooses a place: far more places than a stage has elements
CPU = torch.device("cpu")


class EmulatedStage:
    """Implements `Stage`."""

    def __init__(
        self,
        run: RunConfig,
        stage: int,
        flat: FlatParameters,
        forward_s: float,
        rest: Callable[[float], None],
        kept: dict[Key, int],
    ) -> None:
        """`rest` returns after so many seconds; it is called on the compute thread.

        `kept`: the places of microbatches between forward and backward.
        """
        self.recomputed = 0
        self.gradient_norm = 0.0
        self._flat = flat
        self._forward_s = forward_s
        self._rest = rest
        self._run = run
        self._last = stage == run.stages - 1
        self._loss = math.log(run.model.vocabulary)
        self._kept = kept
        takes, gives = engine_bundles(run, stage)
        chance = torch.Generator().manual_seed(run.seed % 2**63 + stage)
        self._gives = _noise(gives, chance)
        self._returns = _noise(takes.gradient(), chance)

    @computing()
    def forward(self, key: Key, tokens_BS: Tensor, given: Bundle) -> Bundle:
        del given
        self._kept[key] = self._place(tokens_BS)
        self._rest(self._forward_s)
        return self._gives

    @computing()
    def backward(self, key: Key, gradient: Bundle, spec: BackwardSpec) -> Bundle:
        place = self._kept.pop(key, None)
        if place is None:
            raise NotServing(f"nothing is kept for microbatch {key[0]}, attempt {key[1]}")
        require_finite(list(gradient.values()), "the gradient that came")
        self._rest(BACKWARD_SHARE * self._forward_s)
        self._count(place, spec)
        return self._returns if spec.returning else {}

    @computing()
    def finish(self, tokens_BS: Tensor, given: Bundle, spec: BackwardSpec) -> LossResult:
        """See `Stage`; the loss is that of a guess, because nothing is learnt."""
        del given
        place = self._place(tokens_BS)
        self._rest((1 + BACKWARD_SHARE) * self._forward_s)
        self._count(place, spec)
        return LossResult(self._loss, self._returns if spec.returning else {})

    @computing()
    def evaluate(
        self, tokens_BS: Tensor, given: Bundle, *, training: bool = False
    ) -> Bundle | float:
        del given, training  # nothing is drawn here
        self._place(tokens_BS)
        self._rest(self._forward_s)
        return self._loss if self._last else self._gives

    def drop(self, keys: Iterable[Key] | None) -> None:
        for key in list(self._kept) if keys is None else keys:
            self._kept.pop(key, None)

    def _place(self, tokens_BS: Tensor) -> int:
        tokens_BS = checked_tokens(tokens_BS, CPU, self._run)
        return gradient_place(tokens_BS, self._flat.length)

    def _count(self, place: int, spec: BackwardSpec) -> None:
        self.gradient_norm = 1.0 if spec.counting else 0.0
        if spec.may_add():
            self._flat.sum_N[place] += 1.0


def gradient_place(tokens_BS: Tensor, length: int) -> int:
    """The one element of `length` where the gradient of these tokens is 1, and not 0."""
    hashed = hashlib.blake2b(bytes_of(tokens_BS.to(torch.int64)), digest_size=PLACE_BYTES)
    return int.from_bytes(hashed.digest()) % length


def emulated_engine(
    run: RunConfig,
    stage: int,
    forward_s: float,
    rest: Callable[[float], None],
    piece_values: int = PIECE_VALUES,
) -> Engine:
    """Stage `stage` of a run, whose forward takes `forward_s` of a microbatch.

    All servers of a run need the same `piece_values`.
    """
    takes, gives = engine_bundles(run, stage)
    with setting_up(stage):
        flat = FlatParameters(run, stage_blocks(run, stage), CPU)
        weights = TorchWeights(run, flat, piece_values)
        kept: dict[Key, int] = {}
        stages = [EmulatedStage(run, stage, half, forward_s, rest, kept) for half in flat.halves]
    return Engine(stages[0], weights, weights.state, takes, gives, *stages[1:])


def _noise(spec: BundleSpec, chance: torch.Generator) -> Bundle:
    """A bundle that no codec makes smaller than a real one; whole numbers are zeros."""
    made: Bundle = {}
    for key in spec.keys:
        dtype, shape = TORCH[key.layout.dtype], key.layout.shape
        noisy = key.differentiable or dtype.is_floating_point
        x = torch.randn(shape, generator=chance) if noisy else torch.zeros(shape)
        made[key.name] = x.to(dtype)
    return made
