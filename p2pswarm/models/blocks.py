"""A model as a list of blocks: how they are made and checked, and their first weights.

The first weights of a block depend only on the seed and the block's number. So any server of a
stage can make version 0 of it, and one process can make the whole model for comparison.

Errors:  Unusable for a block whose replicas could differ, or that could give two results for one
         microbatch.
"""

import copy
import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import DTYPES, Block, WholeBlock
from p2pswarm.models.first_weights import TAG, PortableDraws
from p2pswarm.models.foreign_code import blocks_of, foreign
from p2pswarm.models.gpt import gpt
from p2pswarm.models.pretrained import PRETRAINED, load_blocks
from p2pswarm.models.registry import Family, family, register
from p2pswarm.models.trainable import (
    is_unset,
    named,
    require_sizes,
    require_trainable,
    reset_of,
    unset,
)
from p2pswarm.models.weight_tying import join_ends, require_ends
from p2pswarm.settings.config import ModelConfig, RunConfig

register("gpt")(gpt)

COSTS_KEPT = 8  # models whose costs are remembered; a process serves one or two


def block_count(model: ModelConfig) -> int:
    """Return how many blocks the family makes of `model`."""
    return len(block_costs(model))


def block_costs(model: ModelConfig) -> tuple[float, ...]:
    """Return what each block costs: its attribute `cost`, else the number of its parameters."""
    return _costs(family(model.family, model.package), model)


def make_blocks(run: RunConfig, numbers: range) -> list[nn.Module]:
    """The blocks `numbers` of the model on torch's current device, without first weights."""
    dtype = DTYPES[run.model.dtype]
    made = blocks_of(family(run.model.family, run.model.package), run.model)
    blocks = made[numbers.start : numbers.stop]
    for number, block in zip(numbers, blocks, strict=True):
        with foreign(f"{named(number, block)} cannot be used"):
            require_trainable(number, block)
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
        with foreign(f"{named(number, block)} cannot draw its first weights"):
            _draw_block(run, number, block)
        _require_values(number, block)


def _draw_block(run: RunConfig, number: int, block: nn.Module) -> None:
    tag = f"{TAG}:{run.seed}:{number}".encode()
    seed = int.from_bytes(hashlib.sha256(tag).digest()[:8]) % 2**63
    if isinstance(block, Block):
        _unset(block)
        with torch.random.fork_rng(devices=[]), PortableDraws(run.seed, number, block):
            torch.manual_seed(seed)
            block.draw(torch.Generator().manual_seed(seed))
        return
    there = copy.deepcopy(block).cpu()
    _unset(there)
    with PortableDraws(run.seed, number, there):
        _reset(there, seed)
    for parameter, drawn in zip(block.parameters(), there.parameters(), strict=True):
        parameter.copy_(drawn)


def _unset(block: nn.Module) -> None:
    for parameter in block.parameters():
        unset(parameter)


def _require_values(number: int, block: nn.Module) -> None:
    """Raise Unusable for a parameter that drawing has left out: it would begin with zeros."""
    for name, parameter in block.named_parameters():
        if not is_unset(parameter):
            continue
        what = f"{named(number, block)}: nothing gives"
        if isinstance(block, WholeBlock):
            raise Unusable(f"{what} {block.full_name(name)} a first value, the library's code too")
        drawing = "draw()"
        if not isinstance(block, Block):
            owner = block.get_submodule(name.rpartition(".")[0])
            drawing = f"reset_parameters() of {type(owner).__name__}"
        raise Unusable(f"{what} {name} a first value: fill it in {drawing}")


def _reset(block: nn.Module, seed: int) -> None:
    """Let torch's own modules draw.

    Their `reset_parameters` takes no generator. What they draw otherwise than by `normal_` and
    `uniform_` comes from torch's global one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in block.modules():
            reset = reset_of(module)
            if reset is not None:
                reset()


@lru_cache(maxsize=COSTS_KEPT)
def _costs(build: Family, model: ModelConfig) -> tuple[float, ...]:
    with torch.device("meta"):
        blocks = blocks_of(build, model)
    for number, block in enumerate(blocks):
        require_sizes(number, block)
    if len({id(p) for b in blocks for p in b.parameters()}) < sum(
        len(list(b.parameters())) for b in blocks
    ):
        raise Unusable(
            f"family {model.family!r}: two blocks share a parameter, and may be served by "
            "different machines: give each its own"
        )
    return tuple(_cost(number, block) for number, block in enumerate(blocks))


def _cost(number: int, block: nn.Module) -> float:
    with foreign(f"{named(number, block)} does not say its cost"):
        given = getattr(block, "cost", None)
    if isinstance(given, int | float):
        if not 0.0 <= given < math.inf:
            raise Unusable(
                f"{named(number, block)} has the cost {given}: it is a number from 0 on, what it "
                "takes beside the others"
            )
        return given
    return sum(parameter.numel() for parameter in block.parameters())


# How the blocks of a model are cut into stages.
#
# Units:   costs as the family gives them; for the GPT they are multiplications per token.
# Errors:  ValueError for a stage that the run does not have; Unusable for more stages than blocks.


def stage_blocks(run: RunConfig, stage: int) -> range:
    """The numbers of the blocks that stage `stage` of `run.stages` serves.

    They are contiguous, and at least one. Without `run.cut` the costliest stage is as cheap as it
    can be.
    """
    if not 0 <= stage < run.stages:
        raise ValueError(f"stage {stage} of {run.stages}")
    costs = block_costs(run.model)
    if run.stages > len(costs):
        raise Unusable(
            f"run.stages {run.stages} is more than the {len(costs)} blocks that the family "
            f"{run.model.family!r} makes"
        )
    if run.cut and sum(run.cut) != len(costs):
        raise Unusable(
            f"run.cut has {sum(run.cut)} blocks, and the family {run.model.family!r} makes "
            f"{len(costs)}: the numbers have to add up to that"
        )
    borders = [0, *accumulate(run.cut)] if run.cut else cheapest_cut(costs, run.stages)
    return range(borders[stage], borders[stage + 1])


def cheapest_cut(costs: Sequence[float], stages: int) -> list[int]:
    """The borders of the cut whose costliest part is cheapest; of equal cuts the first."""
    count = len(costs)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = [[0.0] * (count + 1) for _ in range(stages + 1)]
    came = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0] = [0.0] + [sums[-1] + 1] * count
    for parts in range(1, stages + 1):
        best[parts][0] = sums[-1] + 1
        for end in range(1, count + 1):
            tries = [
                (max(best[parts - 1][start], sums[end] - sums[start]), start)
                for start in range(parts - 1, end)
            ] or [(sums[-1] + 1, 0)]
            best[parts][end], came[parts][end] = min(tries)
    borders = [count]
    for parts in range(stages, 0, -1):
        borders.append(came[parts][borders[-1]])
    return borders[::-1]
