"""The part of a rank in a stage: by rows, or by tensors.

Shapes:  N elements in the stage; B rows of a microbatch, T tokens, V vocabulary, v of it here.
Source:  Zhao et al., "PyTorch FSDP" (2023); torch.distributed.fsdp.fully_shard.
"""
# ruff: noqa: D102, N803  `StageShards` documents its methods; shapes end the names

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import Value
from p2pswarm.models.boundary import Boundary
from p2pswarm.models.compute.flat_parameters import bind, zero_buffer
from p2pswarm.models.compute.precision import in_dtypes_of
from p2pswarm.models.dropout import run_blocks
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.losses.cross_entropy import nats_of
from p2pswarm.server.devices.row_split import REMEDY, split_keys
from p2pswarm.server.devices.tensor_blocks import DeviceTensors, shared_blocks
from p2pswarm.server.devices.tensor_split import spans_of
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.flat_layout import FlatLayout

Pairs = Iterator[tuple[Tensor, Tensor]]
"""Of a whole tensor and of this rank's memory, what belongs together."""


class StageBlocks(nn.Module):
    """The blocks of a stage as one module: torch then gathers the next one ahead."""

    def __init__(
        self, blocks: Sequence[nn.Module], given: Sequence[Boundary], *, bf16: bool, kind: str
    ) -> None:
        """`given`: what each block gives in the dtype of the weights; `kind`: of the device."""
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.kind = kind
        self.features = given[-1].tensors[0].shape[-1]
        """Of what the last block gives, on one device."""
        self._given = dict(zip(blocks, given, strict=True))
        self._bf16 = bf16

    def forward(self, value: Value) -> Value:
        """Run all of them, in bfloat16 as `models/compute/precision.py` does it."""
        if not self._bf16:
            return run_blocks(self.blocks, value)
        with torch.autocast(self.kind, torch.bfloat16, cache_enabled=False):
            return run_blocks(self.blocks, value, None, self._call)

    def _call(self, block: nn.Module, value: Value) -> Value:
        return in_dtypes_of(block(value), self._given[block])


class StageShards(Protocol):
    """The parts of parameters of a rank, and its share of the loss.

    By rows and by tokens, torch's `fully_shard` cuts every parameter by its first dimension,
    gathers the weights of a block when it is computed, and adds the gradients of all ranks up, so
    that each has its shard of the sum over all rows. The losses of ranks' rows or tokens are sums
    over their targets, so the sum is the gradient of the whole. By tensors, every rank
    computes all rows with its parts of the parameters, and what is whole on all of them is told by
    the first.
    """

    split_below: frozenset[str]
    """The tensors below the stage of which a rank has its rows; of others it has all."""
    split_above: frozenset[str]
    gradient_share: float
    """The weight of a rank's gradient in that of the microbatch: 1, or 0 of rows of another."""
    loss_share: float
    """The weight of its loss in that of all ranks: 1, or 0 where another tells of the same."""
    parameters: list[nn.Parameter]

    def local(self, x: Tensor) -> Tensor:
        """This rank's memory of a parameter, or of its gradient."""
        ...

    def pairs(self, number: int, flat_N: Tensor, local: Tensor) -> Pairs:
        """The parts of parameter `number` in a flat buffer, and in this rank's memory."""
        ...

    def tells(self, number: int) -> bool:
        """Return whether this rank tells of its part of a parameter: another may have the same."""
        ...

    def complete(self) -> None:
        """Add up what a backward has left in parts."""
        ...

    def forget(self) -> None:
        """Hold no graph after a forward."""
        ...

    def nats(self, scores: Tensor, labels_BT: Tensor) -> Tensor:
        """The loss of all targets of this rank's rows together."""
        ...


class RowShards:
    """Implements `StageShards` by rows, and by tokens."""

    def __init__(
        self,
        run: RunConfig,
        stage: int,
        rank: tuple[int, int],
        model: StageBlocks,
        layout: FlatLayout,
        share: float,
    ) -> None:
        """`rank`: which of how many. `share`: 0 if its rows are another's."""
        self._rank, self._ranks = rank
        self._layout = layout
        self.gradient_share = self.loss_share = share
        self.split_below, self.split_above = split_keys(run, stage - 1), split_keys(run, stage)
        # shards have the model's dtype, in which their gradients are added up
        bind(list(model.blocks), layout, zero_buffer(layout, run.model.dtype, torch.device("cpu")))
        self.parameters = _sharded(model, self._ranks)

    def local(self, x: Tensor) -> Tensor:
        assert isinstance(x, DTensor), "every parameter is sharded"
        return x.to_local().detach()

    def pairs(self, number: int, flat_N: Tensor, local: Tensor) -> Pairs:
        tensor = self._layout.tensors[number]
        whole = flat_N[tensor.start : tensor.stop].view(tensor.shape)
        each = -(-whole.shape[0] // self._ranks)  # as torch cuts it
        yield whole[self._rank * each : (self._rank + 1) * each], local

    def tells(self, number: int) -> bool:
        del number
        return True

    def complete(self) -> None:
        """Nothing: torch has added up."""

    def forget(self) -> None:
        """Nothing: none is held."""

    def nats(self, scores: Tensor, labels_BT: Tensor) -> Tensor:
        return nats_of(scores, labels_BT)


class TensorShards:
    """Implements `StageShards` by tensors."""

    split_below: frozenset[str] = frozenset()
    split_above: frozenset[str] = frozenset()
    gradient_share = 1.0

    def __init__(
        self,
        run: RunConfig,
        rank: tuple[int, int],
        model: StageBlocks,
        layout: FlatLayout,
        device: torch.device,
    ) -> None:
        """`rank`: which of how many."""
        self._group = DeviceTensors(*rank)
        self._layout = layout
        self._vocabulary = model.features  # of the head, in the last stage
        self.loss_share = 0.0 if rank[0] else 1.0
        self._locals = shared_blocks(
            list(model.blocks), self._group, DTYPES[run.model.dtype], device
        )
        self.parameters = [each.parameter for each in self._locals]

    def local(self, x: Tensor) -> Tensor:
        return x.detach()

    def pairs(self, number: int, flat_N: Tensor, local: Tensor) -> Pairs:
        tensor, split = self._layout.tensors[number], self._locals[number].split
        whole = flat_N[tensor.start : tensor.stop].view(tensor.shape)
        if split is None:
            yield whole, local
            return
        group, place = self._group, 0
        for start, stop in spans_of(split, tensor.shape[split.dim], group.rank, group.ranks):
            size = stop - start
            yield whole.narrow(split.dim, start, size), local.narrow(split.dim, place, size)
            place += size

    def tells(self, number: int) -> bool:
        return self._group.rank == 0 or self._locals[number].split is not None

    def forget(self) -> None:
        self._group.forget()

    def complete(self) -> None:
        self.forget()  # graphs that were made again within the backward
        for each in self._locals:
            if each.own_features and each.parameter.grad is not None:
                dist.all_reduce(each.parameter.grad)

    def nats(self, scores: Tensor, labels_BT: Tensor) -> Tensor:
        if scores.shape[-1] == self._vocabulary:
            return nats_of(scores, labels_BT)  # of all tokens: the head is not split
        return self._group.nats(scores, labels_BT, self._vocabulary)


def _sharded(model: StageBlocks, ranks: int) -> list[nn.Parameter]:
    """Shard what trains of every block, and the whole around them; the parameters, in their order.

    What is frozen is whole in every rank: packed, it is as large as its gathered copy.
    """
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise Unusable(
            "this torch adds up wrongly what only some devices use: install a newer one, set "
            f'serve.parallel to "tensor", or {REMEDY}'
        )
    mesh = init_device_mesh(model.kind, (ranks,))
    frozen = {parameter for parameter in model.parameters() if not parameter.requires_grad}
    for module in (*model.blocks, model):
        if any(parameter.requires_grad for parameter in module.parameters()):
            fully_shard(module, mesh=mesh, ignored_params=frozen)
            assert isinstance(module, FSDPModule), "that is what it was made"
            module.set_gradient_divide_factor(1.0)  # the losses have their shares already
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
            # a rank whose rows or tokens pass by a parameter takes part in its sum all the same
            module.set_reduce_scatter_unused_params(True)
    own = (parameter for block in model.blocks for parameter in block.parameters())
    return [parameter for parameter in own if parameter.requires_grad]
