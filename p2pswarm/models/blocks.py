"""A model as a list of blocks: how they are made and checked, and their first weights.

The first weights of a block depend only on the seed and the block's number. So any server of a
stage can make version 0 of it, and one process can make the whole model for comparison.

Errors:  Unusable for a block whose replicas could differ, or that could give two results for one
         microbatch.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.errors import Unusable
from p2pswarm.models.base import DTYPES, Block, WholeBlock
from p2pswarm.models.first_weights import TAG, PortableDraws
from p2pswarm.models.foreign_code import blocks_of, foreign
from p2pswarm.models.gpt import gpt
from p2pswarm.models.pretrained import PRETRAINED, load_blocks
from p2pswarm.models.registry import Family, family, register
from p2pswarm.models.tying import join_ends, require_ends

register("gpt")(gpt)

COSTS_KEPT = 8  # models whose costs are remembered; a process serves one or two


def block_count(model: ModelConfig) -> int:
    """How many blocks the family makes of `model`."""
    return len(block_costs(model))


def block_costs(model: ModelConfig) -> tuple[float, ...]:
    """What each block costs: its attribute `cost`, else the number of its parameters."""
    return _costs(family(model.family, model.package), model)


def make_blocks(run: RunConfig, numbers: range) -> list[nn.Module]:
    """The blocks `numbers` of the model on torch's current device, without first weights."""
    dtype = DTYPES[run.model.dtype]
    made = blocks_of(family(run.model.family, run.model.package), run.model)
    blocks = made[numbers.start : numbers.stop]
    for number, block in zip(numbers, blocks, strict=True):
        with foreign(f"{_named(number, block)} cannot be used"):
            _require_trainable(number, block)
            block.to(dtype)
    if run.model.tie:
        require_ends(run.model.family, made)
        join_ends(blocks)
    return blocks


def fill_buffers(
    run: RunConfig, numbers: range, blocks: Sequence[nn.Module], device: torch.device
) -> None:
    """Give their buffers to blocks that were made on the meta device."""
    if not any(True for block in blocks for _ in block.buffers()):
        return
    own = [block for block in blocks if isinstance(block, WholeBlock)]
    if own:  # such a model has no others
        for each in own:
            each.fill_buffers(device)
        return
    for block, made in zip(blocks, make_blocks(run, numbers), strict=True):
        for name, buffer in made.named_buffers():
            owner, _, last = name.rpartition(".")
            block.get_submodule(owner).register_buffer(last, buffer.to(device), persistent=False)


@torch.no_grad()
def draw_blocks(run: RunConfig, numbers: range, blocks: Sequence[nn.Module]) -> None:
    """Draw version 0 of the blocks `numbers`, or load it; it is the same on every machine."""
    if run.start == PRETRAINED:
        load_blocks(run, blocks)
        return
    for number, block in zip(numbers, blocks, strict=True):
        with foreign(f"{_named(number, block)} cannot draw its first weights"):
            _draw_block(run, number, block)


def _draw_block(run: RunConfig, number: int, block: nn.Module) -> None:
    tag = f"{TAG}:{run.seed}:{number}".encode()
    seed = int.from_bytes(hashlib.sha256(tag).digest()[:8]) % 2**63
    if isinstance(block, Block):
        with PortableDraws(run.seed, number, block):
            block.draw(torch.Generator().manual_seed(seed))
        return
    there = copy.deepcopy(block).cpu()
    with PortableDraws(run.seed, number, there):
        _reset(there, seed)
    for parameter, drawn in zip(block.parameters(), there.parameters(), strict=True):
        parameter.copy_(drawn)


def _reset(block: nn.Module, seed: int) -> None:
    """Let torch's own modules draw.

    Their `reset_parameters` takes no generator. What they draw otherwise than by `normal_` and
    `uniform_` comes from torch's global one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in block.modules():
            reset = _reset_of(module)
            if reset is not None:
                reset()


def _reset_of(module: nn.Module) -> Callable[[], object] | None:
    """How a module of torch draws its own parameters."""
    found = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return found if callable(found) else None


@lru_cache(maxsize=COSTS_KEPT)
def _costs(build: Family, model: ModelConfig) -> tuple[float, ...]:
    with torch.device("meta"):
        blocks = blocks_of(build, model)
    for number, block in enumerate(blocks):
        _require_sizes(number, block)
    if len({id(p) for b in blocks for p in b.parameters()}) < sum(
        len(list(b.parameters())) for b in blocks
    ):
        raise Unusable(
            f"family {model.family!r}: two blocks share a parameter, and may be served by "
            "different machines: give each its own"
        )
    return tuple(_cost(number, block) for number, block in enumerate(blocks))


def _require_sizes(number: int, block: nn.Module) -> None:
    """Raise Unusable for parameters that get their sizes from what is computed first."""
    for name, parameter in block.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise Unusable(
                f"{_named(number, block)}: {name} has no size before it is used, and each machine "
                "makes its own blocks: give the module its sizes instead of a lazy one"
            )


def _cost(number: int, block: nn.Module) -> float:
    with foreign(f"{_named(number, block)} does not say its cost"):
        given = getattr(block, "cost", None)
    if isinstance(given, int | float):
        if not 0.0 <= given < math.inf:
            raise Unusable(
                f"{_named(number, block)} has the cost {given}: it is a number from 0 on, what it "
                "takes beside the others"
            )
        return given
    return sum(parameter.numel() for parameter in block.parameters())


def _named(number: int, block: nn.Module) -> str:
    return f"block {number} ({type(block).__name__})"


def _require_trainable(number: int, block: nn.Module) -> None:
    """Raise Unusable for state that averaging would lose."""
    what = _named(number, block)
    kept = block.state_dict().keys() & {name for name, _ in block.named_buffers()}
    if kept:
        raise Unusable(
            f"{what} has the buffer {min(kept)}, which would not be averaged: register it with "
            "persistent=False if it is a constant"
        )
    for module in block.modules():
        own = list(module.parameters(recurse=False))
        if own and _reset_of(module) is None and not isinstance(block, Block):
            raise Unusable(
                f"{what}: {type(module).__name__} has parameters and no reset_parameters(): give "
                "it one, for the first weights"
            )
    for name, parameter in block.named_parameters():
        if not parameter.requires_grad:
            raise Unusable(f"{what}: {name} does not train: make it a buffer, persistent=False")
        if not parameter.is_floating_point():
            raise Unusable(
                f"{what}: {name} is of {parameter.dtype}, and weights are real numbers: make it "
                "two, its real and its imaginary part"
            )
