"""A stage's state in torch, piece by piece: read, put in its place, and brought one step further.

Shapes:  N elements in a stage; a piece is elements start..stop-1 of weights and moments.
Errors:  BadMessage for a piece of another size.
"""
# ruff: noqa: N806  shapes are written at the end of names

from collections.abc import Sequence

import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.compute.base import Update, part_sizes
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.optimizer import Optimizer
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.run.averaging.base import Sums
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.state_tree import PIECE_VALUES


class TorchState:
    """Implements `StateMemory` on flat memory."""

    def __init__(
        self, flat: FlatParameters, optimizer: Optimizer, piece_values: int = PIECE_VALUES
    ) -> None:
        self._flat = flat
        self.tensors = len(flat.state())
        self._optimizer = optimizer
        self._spans = flat.spans(piece_values)
        self.pieces = len(self._spans)

    def part_bytes(self, tensor: int, piece: int) -> int:
        """The size of a piece's part of one tensor."""
        start, stop = self._spans[piece]
        return (stop - start) * self._flat.layout.item_bytes[tensor]

    def read(self, tensor: int, piece: int) -> memoryview:
        """Copy a part; it stays as it is whatever happens to the weights."""
        start, stop = self._spans[piece]
        part = self._flat.state()[tensor].detach()[start:stop]
        return bytes_of(part.clone() if part.device.type == "cpu" else part.cpu())

    @torch.no_grad()
    def write(self, piece: int, parts: Sequence[memoryview]) -> None:
        """Put a piece in its place."""
        start, stop = self._spans[piece]
        sizes = [part.nbytes for part in parts]
        if sizes != part_sizes(self, piece):
            raise BadMessage(f"parts of {sizes} bytes are no piece {piece}")
        for x_N, part in zip(self._flat.state(), parts, strict=True):
            if part.nbytes:  # as bytes: a part of four a value may follow one of two, at any place
                x_N[start:stop].view(torch.uint8).copy_(torch.frombuffer(part, dtype=torch.uint8))

    def gradient(self, reduced: Sums, piece: int) -> Tensor:
        """Copy a piece's part of a reduced gradient, to the host."""
        assert isinstance(reduced, TorchSums)
        start, stop = self._spans[piece]
        part = reduced.reduced_N[start:stop]
        return part.clone() if part.device.type == "cpu" else part.cpu()

    def follow(self, piece: int, gradient: Tensor, update: Update) -> None:
        """Apply a commit to one piece: what `Weights.apply` does to all of them."""
        there = gradient.to(self._flat.params_N.device)
        self._optimizer.step_span(there, update, *self._spans[piece])
