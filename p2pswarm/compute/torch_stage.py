"""A range of blocks on torch: forward, and backward from the graph kept or made again.

Gradients are taken with `torch.autograd.grad` and added to the sum only after all of them were
found finite, so an error never leaves a microbatch half counted. A graph is kept while the budget
allows, which is a matter of speed alone: making it again from the kept input gives the same bits.

Units:   bytes.
Shapes:  as `base.py`.
Errors:  Refused when a loss or a gradient is not finite; NotServing when nothing is kept for a key.
"""
# ruff: noqa: N803, N806, N815  shapes are written at the end of names

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p2pswarm.compute.base import BackwardSpec, Key, LossResult
from p2pswarm.compute.flat_parameters import FlatParameters
from p2pswarm.config import RunConfig
from p2pswarm.errors import BadMessage, NotServing, Refused
from p2pswarm.models.base import loss_of


@dataclass(slots=True)
class _Kept:
    """One microbatch between its forward and its backward."""

    tokens_BS: Tensor
    x_BTD: Tensor | None
    """A leaf of the graph."""
    y_BTD: Tensor | None
    """The end of the graph, if there was memory for it."""
    graph_bytes: int


class TorchStage:
    """Implements `Stage`."""

    def __init__(self, run: RunConfig, stage: int, flat: FlatParameters, keep_bytes: int) -> None:
        self._flat = flat
        self._device = flat.params_N.device
        self._dtype = flat.params_N.dtype
        self._model = run.model
        self._first = stage == 0
        self._last = stage == run.stages - 1
        self._share = 1.0 / run.batch.microbatches
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self._kept: dict[Key, _Kept] = {}
        self._weight_memory = {flat.params_N.untyped_storage().data_ptr()}
        self._graph_bytes: dict[torch.Size, int] = {}
        """Measured once a shape of tokens."""
        self.recomputed = 0

    def forward(self, key: Key, tokens_BS: Tensor, x_BTD: Tensor | None) -> Tensor:
        """See `Stage`; keeps the graph if its measured size still fits."""
        tokens_BS, x_BTD = self._inputs(tokens_BS, x_BTD)
        kept = _Kept(tokens_BS, _leaf(x_BTD), None, 0)
        size_bytes = self._graph_bytes.get(tokens_BS.shape)
        if size_bytes is None:
            y_BTD, size_bytes = self._measured(kept)
            self._graph_bytes[tokens_BS.shape] = size_bytes
            fits = self._kept_bytes + size_bytes <= self._keep_bytes
        else:
            fits = self._kept_bytes + size_bytes <= self._keep_bytes
            with torch.set_grad_enabled(fits):
                y_BTD = self._run(kept.tokens_BS, kept.x_BTD)
        if fits:
            kept.y_BTD, kept.graph_bytes = y_BTD, size_bytes
            self._kept_bytes += size_bytes
        self._kept[key] = kept
        return y_BTD.detach()

    def backward(self, key: Key, gradient_BTD: Tensor, spec: BackwardSpec) -> Tensor | None:
        """See `Stage`."""
        kept = self._take(key)
        gradient_BTD = gradient_BTD.to(self._device, self._dtype)
        _require_finite((gradient_BTD,), "the gradient that came")
        y_BTD = kept.y_BTD
        if y_BTD is None:
            self.recomputed += 1
            y_BTD = self._run(kept.tokens_BS, kept.x_BTD)
        if gradient_BTD.shape != y_BTD.shape:
            raise BadMessage(f"a gradient of {tuple(gradient_BTD.shape)} for {tuple(y_BTD.shape)}")
        return self._differentiate(y_BTD, gradient_BTD, kept.x_BTD, spec)

    def finish(self, tokens_BS: Tensor, x_BTD: Tensor | None, spec: BackwardSpec) -> LossResult:
        """See `Stage`."""
        tokens_BS, x_BTD = self._inputs(tokens_BS, x_BTD)
        leaf_BTD = _leaf(x_BTD)
        loss = loss_of(self._run(tokens_BS, leaf_BTD), tokens_BS[:, 1:])
        value = loss.item()
        if not math.isfinite(value):
            raise Refused(f"the loss is {value}")
        share = torch.full_like(loss, self._share)
        return LossResult(value, self._differentiate(loss, share, leaf_BTD, spec))

    @torch.no_grad()
    def evaluate(self, tokens_BS: Tensor, x_BTD: Tensor | None) -> Tensor | float:
        """See `Stage`."""
        tokens_BS, x_BTD = self._inputs(tokens_BS, x_BTD)
        y = self._run(tokens_BS, x_BTD)
        return loss_of(y, tokens_BS[:, 1:]).item() if self._last else y

    def drop(self, keys: Iterable[Key] | None) -> None:
        """See `Stage`."""
        for key in list(self._kept) if keys is None else keys:
            if key in self._kept:
                self._take(key)

    def _take(self, key: Key) -> _Kept:
        kept = self._kept.pop(key, None)
        if kept is None:
            raise NotServing(f"nothing is kept for microbatch {key[0]}, attempt {key[1]}")
        self._kept_bytes -= kept.graph_bytes
        return kept

    def _inputs(self, tokens_BS: Tensor, x_BTD: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What came from a peer, checked, where and as the blocks want it."""
        if tokens_BS.dim() != 2 or tokens_BS.shape[1] < 2 or tokens_BS.is_floating_point():  # noqa: PLR2004
            raise BadMessage(f"tokens of {tokens_BS.dtype} {tuple(tokens_BS.shape)}")
        tokens_BS = tokens_BS.to(self._device, torch.int64)
        low, high = (x.item() for x in tokens_BS.aminmax())
        if low < 0 or high >= self._model.vocabulary:
            raise BadMessage(f"tokens {low}..{high}, the vocabulary has {self._model.vocabulary}")
        if self._first:
            if x_BTD is not None:
                raise BadMessage("an activation for the first stage")
            return tokens_BS, None
        rows, length = tokens_BS.shape
        wanted = (rows, length - 1, self._model.d_model)
        if x_BTD is None or x_BTD.shape != wanted:
            came = None if x_BTD is None else tuple(x_BTD.shape)
            raise BadMessage(f"an activation {came} where {wanted} is due")
        return tokens_BS, x_BTD.to(self._device, self._dtype)

    def _run(self, tokens_BS: Tensor, x_BTD: Tensor | None) -> Tensor:
        x = tokens_BS[:, :-1] if x_BTD is None else x_BTD
        for block in self._flat.blocks:
            x = block(x)
        return x

    def _measured(self, kept: _Kept) -> tuple[Tensor, int]:
        """Run, and add up the distinct memory that the graph holds, weights aside."""
        storages: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._weight_memory:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y_BTD = self._run(kept.tokens_BS, kept.x_BTD)
        return y_BTD, sum(storages.values())

    def _differentiate(
        self, end: Tensor, gradient: Tensor, leaf_BTD: Tensor | None, spec: BackwardSpec
    ) -> Tensor | None:
        """Gradients of the weights into the sum, that of the input returned; all or nothing."""
        returned = [leaf_BTD] if spec.returning and leaf_BTD is not None else []
        wanted = [*self._flat.parameters, *returned] if spec.counting else returned
        if not wanted:
            return None
        gradients = torch.autograd.grad(end, wanted, gradient)
        _require_finite(gradients, "a gradient")
        if spec.counting:
            for total, part in zip(self._flat.sums, gradients, strict=False):
                total.add_(part)
        return gradients[-1] if returned else None


def _leaf(x_BTD: Tensor | None) -> Tensor | None:
    """A start for a graph."""
    return None if x_BTD is None else x_BTD.detach().requires_grad_()


def _require_finite(tensors: Sequence[Tensor], what: str) -> None:
    """Refuse what holds NaN, an infinity, or values whose squares overflow, which is as bad.

    A dot product reads memory as fast as it comes: 1 % of a backward, a tenth of what norms take.
    """
    flats = [x.reshape(-1) for x in tensors]
    total = torch.stack([torch.dot(x, x) for x in flats]).sum()  # on a GPU, one wait for all
    if not math.isfinite(total.item()):
        raise Refused(f"{what} is not finite: lower the learning rate or look at the text")
