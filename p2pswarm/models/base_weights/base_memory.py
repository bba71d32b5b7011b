"""The frozen weights of a stage: packed, hashed once, and used where they lie.

The hash of the blocks' roots is the leaf of a stage, one more in the tree of its state
(`tensors/state_tree.py`). So whoever agrees on a state agrees on the base under it.

Shapes:  bytes are uint8, one buffer for each block.
Errors:  BadMessage for a piece of another size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.base_weights.base_layout import (
    base_spans,
    base_tensors,
    block_hashes,
    block_key,
    fill_block,
    size_of,
)
from p2pswarm.models.formats.product_modules import (
    PackedEmbedding,
    PackedLinear,
    PackedParameters,
    PackedWeight,
    ScratchMemory,
)
from p2pswarm.models.formats.weight_formats import DTYPES, PlainFormat
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.codecs.tensor_pool import on_host
from p2pswarm.tensors.state_tree import base_leaves, root_of


class BaseMemory:
    """The frozen weights of the blocks of a stage; implements `FrozenWeights`."""

    def __init__(
        self, run: RunConfig, numbers: range, blocks: Sequence[nn.Module], device: torch.device
    ) -> None:
        self._run, self._numbers, self._blocks = run, numbers, blocks
        self._dtype = DTYPES[run.model.dtype]
        self._tensors = [base_tensors(run, block) for block in blocks]
        sizes = map(size_of, self._tensors)
        self.buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]
        self._scratch = ScratchMemory()
        self._copies: dict[int, tuple[nn.Parameter, PackedWeight]] = {}
        """What is computed with in another dtype than it is kept in, by where its bytes lie."""
        self.roots: tuple[bytes, ...] = ()
        """Of each block; none until they are here."""
        self._hashes: tuple[bytes, ...] = ()
        self._places = [
            (block, span)
            for block, data in enumerate(self.buffers)
            for span in base_spans(len(data))
        ]
        """The block of each piece, and its place there."""
        self.pieces = len(self._places)
        self.bind(blocks)

    @property
    def size_bytes(self) -> int:
        """The bytes of all blocks."""
        return sum(map(len, self.buffers))

    @property
    def storages(self) -> frozenset[int]:
        """The memory of frozen weights: a graph refers to it and does not hold it."""
        there = (*self.buffers, *(copy for copy, _ in self._copies.values()))
        return frozenset(x.untyped_storage().data_ptr() for x in there)

    def bind(self, blocks: Sequence[nn.Module]) -> None:
        """Have modules use the weights; also those of a second copy of the blocks."""
        for block, tensors, data in zip(blocks, self._tensors, self.buffers, strict=True):
            for tensor in tensors:
                owner, _, own = tensor.name.rpartition(".")
                part = data[tensor.start : tensor.stop]
                packed = PackedWeight(tensor.format, part, tensor.shape, self._scratch)
                self._bind(block.get_submodule(owner), own, packed)

    def _bind(self, module: nn.Module, name: str, packed: PackedWeight) -> None:
        form = packed.format
        if isinstance(form, PlainFormat) and form.dtype == self._dtype:
            there = form.view(packed.data, packed.shape)
            setattr(module, name, nn.Parameter(there, requires_grad=False))
        elif isinstance(module, PackedParameters) and name in module.packs:
            module.packed[name] = packed
        elif isinstance(module, PackedLinear | PackedEmbedding) and name in module.packs:
            module.packed = packed
        else:
            place = packed.data.data_ptr()
            if place not in self._copies:
                empty = torch.empty(packed.shape, dtype=self._dtype, device=packed.data.device)
                self._copies[place] = nn.Parameter(empty, requires_grad=False), packed
            setattr(module, name, self._copies[place][0])

    @torch.no_grad()
    def fill(self) -> None:
        """Draw the weights, or read them from the files of the run's model."""
        there = zip(self._numbers, self._blocks, self._tensors, self.buffers, strict=True)
        for number, block, tensors, data in there:
            fill_block(self._run, number, block, tensors, data)
        self.use()

    def block_of(self, piece: int) -> int:
        """Return which block of the stage a piece is of, from 0."""
        return self._places[piece][0]

    @property
    def keys(self) -> tuple[str, ...]:
        """A name for what the bytes of each block are made of."""
        return tuple(block_key(self._run, number) for number in self._numbers)

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""
        return len(self._piece(piece))

    def read(self, piece: int) -> memoryview:
        """Copy a piece."""
        part = self._piece(piece)
        return bytes_of(part.clone() if part.device.type == "cpu" else on_host(part))

    def write(self, piece: int, data: memoryview) -> None:
        """Put a piece in its place."""
        part = self._piece(piece)
        if data.nbytes != len(part):
            raise BadMessage(f"{data.nbytes} bytes are no piece {piece} of frozen weights")
        part.copy_(torch.frombuffer(data, dtype=torch.uint8))

    def hashes(self) -> tuple[bytes, ...]:
        """The hash of each piece; none until they are here."""
        return self._hashes

    def leaf(self, hashes: Sequence[bytes]) -> bytes:
        """The leaf of a stage whose pieces have these hashes."""
        (leaf,) = base_leaves(self._roots(hashes))
        return leaf

    @torch.no_grad()
    def use(self) -> None:
        """Compute with what is here now."""
        for copy, packed in self._copies.values():
            copy.copy_(packed.dense(self._dtype))
        self._hashes = tuple(hashed for data in self.buffers for hashed in block_hashes(data))
        self.roots = self._roots(self._hashes)

    def _roots(self, hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        of_blocks: list[list[bytes]] = [[] for _ in self.buffers]
        for (block, _), hashed in zip(self._places, hashes, strict=True):
            of_blocks[block].append(hashed)
        return tuple(map(root_of, of_blocks))

    def _piece(self, piece: int) -> Tensor:
        block, (start, stop) = self._places[piece]
        return self.buffers[block][start:stop]
