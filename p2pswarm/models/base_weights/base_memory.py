"""The frozen weights of a stage: packed, hashed once, and used where they lie.

The hash of the blocks' roots is the leaf of a stage, one more in the tree of its state
(`tensors/state_tree.py`). So whoever agrees on a state agrees on the base under it.

Shapes:  bytes are uint8, one buffer for each block.
Errors:  BadMessage for a piece of another size.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.base_weights.base_layout import (
    BaseTensor,
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
from p2pswarm.models.formats.weight_formats import (
    ALIGN_BYTES,
    DTYPES,
    PlainFormat,
    TensorCut,
)
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.codecs.tensor_pool import on_host
from p2pswarm.tensors.flat_layout import Span
from p2pswarm.tensors.state_tree import base_leaves, root_of

Cuts = Mapping[int, Mapping[str, TensorCut]]
EVERYTHING: Cuts = {}
ZerosFor = Callable[[str, torch.dtype, int], Tensor]
"""Makes the memory of a name, a dtype and a length."""
PACKED, UNPACKED = "base", "base_unpacked"


class BaseMemory:
    """The frozen weights of the blocks of a stage; implements `FrozenWeights`."""

    def __init__(
        self,
        run: RunConfig,
        numbers: range,
        blocks: Sequence[nn.Module],
        device: torch.device,
        zeros_for: ZerosFor | None = None,
        cuts: Cuts = EVERYTHING,
    ) -> None:
        """`zeros_for`: makes the memory elsewhere than on `device`; `cuts`: of each block, the
        parts of parameters that are here, by their names; of others all is here.
        """
        self._run, self._numbers, self._blocks = run, numbers, blocks
        self._cuts = cuts
        self._uncut = [base_tensors(run, block) for block in blocks] if cuts else []
        self._dtype = DTYPES[run.model.dtype]
        self._tensors = [
            base_tensors(run, block, cuts.get(place, {})) for place, block in enumerate(blocks)
        ]
        self._scratch = ScratchMemory()

        def zeros(name: str, dtype: torch.dtype, length: int) -> Tensor:
            if zeros_for is not None:
                return zeros_for(name, dtype, length)
            return torch.zeros(length, dtype=dtype, device=device)

        sizes = list(map(size_of, self._tensors))
        places = self._unpacked_places(blocks)
        length = max((stop for _, stop in places.values()), default=0)
        packed = zeros(PACKED, torch.uint8, sum(sizes))
        unpacked = zeros(UNPACKED, self._dtype, length)
        self.memory = {PACKED: packed, UNPACKED: unpacked}
        """The bytes of all blocks; and what is no product's and is computed with in another dtype
        than it is kept in, such as norms."""
        self.buffers = list(torch.split(packed, sizes))
        self._unpacked: dict[tuple[int, str], nn.Parameter] = {}
        for block, tensor in self._all():
            if (place := places.get((block, tensor.name))) is not None:
                there = unpacked[slice(*place)].view(tensor.shape)
                self._unpacked[block, tensor.name] = nn.Parameter(there, requires_grad=False)
        self.uses = 0
        """How often there was something new to compute with."""
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
        return frozenset(x.untyped_storage().data_ptr() for x in self.memory.values())

    def bind(self, blocks: Sequence[nn.Module]) -> None:
        """Have modules use the weights; also those of a second copy of the blocks."""
        for block, tensor in self._all():
            owner, _, own = tensor.name.rpartition(".")
            module, packed = blocks[block].get_submodule(owner), self._packed(block, tensor)
            if (block, tensor.name) in self._unpacked:
                setattr(module, own, self._unpacked[block, tensor.name])
            elif isinstance(module, PackedParameters) and not self._is_plain(tensor):
                module.packed[own] = packed
            elif isinstance(module, PackedLinear | PackedEmbedding) and not self._is_plain(tensor):
                module.packed = packed
            else:
                there = tensor.format.unpack(packed.data, packed.shape, self._dtype)
                setattr(module, own, nn.Parameter(there, requires_grad=False))

    def _all(self) -> Iterator[tuple[int, BaseTensor]]:
        """Every frozen parameter, with the place of its block."""
        return ((place, each) for place, own in enumerate(self._tensors) for each in own)

    def _packed(self, block: int, tensor: BaseTensor) -> PackedWeight:
        part = self.buffers[block][tensor.start : tensor.stop]
        return PackedWeight(tensor.format, part, tensor.shape, self._scratch)

    def _is_plain(self, tensor: BaseTensor) -> bool:
        """Return whether modules compute with the bytes as they are."""
        return isinstance(tensor.format, PlainFormat) and tensor.format.dtype == self._dtype

    def _unpacked_places(self, blocks: Sequence[nn.Module]) -> dict[tuple[int, str], Span]:
        """Where what is unpacked for good lies, in values."""
        found, start = {}, 0
        for block, tensor in self._all():
            owner, _, own = tensor.name.rpartition(".")
            packs = getattr(blocks[block].get_submodule(owner), "packs", {})
            if own not in packs and not self._is_plain(tensor):
                stop = start + math.prod(tensor.shape)
                found[block, tensor.name] = start, stop
                start = stop + -stop % ALIGN_BYTES
        return found

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
    def take_parts(self, whole: Tensor) -> None:
        """Fill what is here, by `cuts`, from the bytes of all blocks."""
        begin = 0
        for place, there in enumerate(self._uncut):
            for tensor, own in zip(there, self._tensors[place], strict=True):
                data = whole[begin + tensor.start : begin + tensor.stop]
                part = self.buffers[place][own.start : own.stop]
                if (cut := self._cuts.get(place, {}).get(tensor.name)) is None:
                    part.copy_(data)
                else:
                    made = torch.zeros(len(part), dtype=torch.uint8, device=data.device)
                    tensor.format.narrow(data, tensor.shape, cut, made)
                    part.copy_(made)
            begin += size_of(there)
        self._unpack()

    def _unpack(self) -> None:
        for block, tensor in self._all():
            if (there := self._unpacked.get((block, tensor.name))) is not None:
                there.copy_(self._packed(block, tensor).dense(self._dtype))

    @torch.no_grad()
    def use(self) -> None:
        """Compute with what is here now."""
        self._unpack()
        self.uses += 1
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
