"""What is frozen of a stage, as one rank computes with it.

By rows and by tokens that is all of it, packed: on the CPU it lies in the node's own memory, which
every rank maps, and another device has a copy. By tensors a rank has its parts.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from p2pswarm.models.base_weights.base_memory import PACKED, BaseMemory
from p2pswarm.server.devices.tensor_split import cuts_of, plan_of, shared_block
from p2pswarm.settings.config import RunConfig


class RankBase:
    """The frozen weights of a rank, and the node's, of which they are copies."""

    def __init__(
        self,
        run: RunConfig,
        numbers: range,
        blocks: Sequence[nn.Module],
        device: torch.device,
        shared: Mapping[str, Tensor],
        tensors_of: tuple[int, int] | None = None,
    ) -> None:
        """`blocks`: they use it from now on. `shared`: what all processes of the node map.

        `tensors_of`: which of how many ranks, if they share tensors.
        """
        self._shared, self._device = shared, device
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._has_parts = tensors_of is not None
        if tensors_of is None:
            self._memory = BaseMemory(run, numbers, blocks, device, self._zeros)
        else:
            splits = [shared_block(block, plan_of(block) or {}).splits for block in blocks]
            cuts = [cuts_of(*each, *tensors_of) for each in zip(blocks, splits, strict=True)]
            self._memory = BaseMemory(run, numbers, blocks, device, cuts=dict(enumerate(cuts)))

    @property
    def own_bytes(self) -> int:
        """Of the memory that is this rank's alone."""
        own = self._memory.memory.values() if self._has_parts else (x for x, _ in self._copies)
        return sum(x.nbytes for x in own)

    def bind(self, blocks: Sequence[nn.Module]) -> None:
        """Have other blocks use it, too."""
        self._memory.bind(blocks)

    def take(self) -> None:
        """Copy what the node has now."""
        if self._has_parts:
            self._memory.take_parts(self._shared[PACKED])
        for here, there in self._copies:
            here.copy_(there)

    def _zeros(self, name: str, dtype: torch.dtype, length: int) -> Tensor:
        shared = self._shared[name]
        if self._device.type == "cpu":
            return shared
        here = torch.zeros(length, dtype=dtype, device=self._device)
        self._copies.append((here, shared))
        return here
