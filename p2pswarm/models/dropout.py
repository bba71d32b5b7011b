"""Dropout, and what else a forward draws: the same for a microbatch wherever and whenever it runs.

A graph that did not fit in memory is made again, and a lost microbatch is done again by another
server. So what a block draws depends on the run's seed, the microbatch's tokens and the number of
the block, and on nothing else: neither the cut into stages nor the order of microbatches matters.
Processors of another kind draw otherwise from one seed; each of them still draws the same twice.

Shapes:  tokens_BS as `models/compute/base.py`.
"""
# ruff: noqa: N803  shapes are written at the end of names

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from p2pswarm.models.base import Value

TAG = "p2pswarm-chance-1"

Call = Callable[[nn.Module, Value], Value]
"""Run one block."""
RunBlock = Callable[[Value], Value]
"""Run a certain block, with all that it draws; always the same bits for the same value."""
Around = Callable[[int, RunBlock, Value], Value]
"""Run the block of that offset, and decide what its graph holds (`compute/autograd_graphs.py`)."""


def draws(block: nn.Module) -> bool:
    """Return whether a block's forward draws: it says so (`random`), or has dropout."""
    random = getattr(block, "random", None)
    if isinstance(random, bool):
        return random
    return any(isinstance(each, _DropoutNd) and each.p > 0 for each in block.modules())


class DropoutSeeds:
    """The seeds of the blocks from number `first` on, for one microbatch."""

    def __init__(self, seed: int, first: int, tokens_BS: Tensor) -> None:
        digest = hashlib.sha256(f"{TAG}:{seed}:{tuple(tokens_BS.shape)}".encode())
        digest.update(tokens_BS.cpu().contiguous().numpy().tobytes())
        self._microbatch, self._first = digest.digest(), first

    def run(self, offset: int, block: nn.Module, value: Value, call: Call) -> Value:
        """Run the block `first + offset`; torch's own generators are as before afterwards."""
        number = (self._first + offset).to_bytes(4)
        seed = int.from_bytes(hashlib.sha256(self._microbatch + number).digest()[:8]) % 2**63
        # a packed weight is no parameter: one without memory stands in its place
        devices = (p.device for p in block.parameters() if not p.is_meta)
        device = next(devices, torch.device("cpu"))
        there = [device] if device.type != "cpu" else []
        with torch.random.fork_rng(there, device_type=device.type if there else "cuda"):
            torch.manual_seed(seed)
            return call(block, value)


def dropout_seeds(
    seed: int, numbers: range, blocks: Sequence[nn.Module], tokens_BS: Tensor
) -> DropoutSeeds | None:
    """The seeds for a microbatch; None where no block draws."""
    return DropoutSeeds(seed, numbers.start, tokens_BS) if any(map(draws, blocks)) else None


def plainly(block: nn.Module, value: Value) -> Value:
    """Run a block with its own parameters."""
    made: Value = block(value)
    return made


def at_once(offset: int, run: RunBlock, value: Value) -> Value:
    """Run a block as it is: its graph holds all that its backward needs."""
    del offset
    return run(value)


def run_blocks(
    blocks: Iterable[nn.Module],
    value: Value,
    dropout: DropoutSeeds | None = None,
    call: Call = plainly,
    around: Around = at_once,
    weight: float = 0.0,
) -> Value:
    """Run one block after another by `call`; those that draw do so by `dropout`.

    `weight`: of the microbatch, for losses of routers; 0: they have none.
    """
    for offset, block in enumerate(blocks):
        if dropout is not None and draws(block):
            run = functools.partial(dropout.run, offset, block, call=call)
        else:
            run = functools.partial(call, block)
        routers = getattr(block, "router_loss", None)
        if weight and routers is not None:
            run = functools.partial(routers.run, weight, run)
        value = around(offset, run, value)
    return value


@contextmanager
def nothing_drawn(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, blocks compute as they do when a model is used: dropout lets all pass."""
    drawing = [each for block in blocks if draws(block) for each in block.modules()]
    training = [each.training for each in drawing]
    for each in drawing:
        each.training = False
    try:
        yield
    finally:
        for each, was in zip(drawing, training, strict=True):
            each.training = was
