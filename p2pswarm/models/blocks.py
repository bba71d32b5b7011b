"""A model as a list of blocks: how they are made and checked, and their first weights.

The first weights of a block depend only on the seed and the block's number. So any server of a
stage can make version 0 of it, and one process can make the whole model for comparison.

Errors:  Unusable for a block whose replicas could differ, or that could give two results for one
         microbatch.
"""

import copy
import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.adapters.lora_modules import draw_adapters, is_of_adapter
from p2pswarm.models.base import Block, WholeBlock
from p2pswarm.models.boundary_block import has_modules, with_modules
from p2pswarm.models.first_weights import TAG, PortableDraws
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.gpt import gpt
from p2pswarm.models.library.foreign_code import blocks_of, foreign
from p2pswarm.models.pretrained import load_blocks, published_values
from p2pswarm.models.registry import Family, family, register
from p2pswarm.models.scope import full_name, is_frozen, set_scope
from p2pswarm.models.trainable import (
    is_unset,
    named,
    require_sizes,
    require_trainable,
    reset_of,
    unset,
)
from p2pswarm.models.weight_tying import join_ends, require_ends
from p2pswarm.settings.config import PRETRAINED, ModelConfig, RunConfig

register("gpt")(gpt)

COSTS_KEPT = 8  # models whose costs are remembered; a process serves one or two


def block_count(model: ModelConfig) -> int:
    """Return how many blocks the family makes of `model`."""
    return len(block_costs(model))


def block_costs(model: ModelConfig) -> tuple[float, ...]:
    """The cost of each block: its attribute `cost`, else the number of its parameters.

    For the GPT a cost is multiplications per token.
    """
    return _costs(family(model.family, model.package), model)


def cut_into(run: RunConfig, stages: int, cut: tuple[int, ...] = ()) -> RunConfig:
    """The run in other stages; a list of averagings, one for each of its own, is of no use there.

    It becomes the name that all of them have, else "raw".
    """
    codecs = run.codecs
    if stages != run.stages and not isinstance(codecs.averaging, str):
        names = set(codecs.averagings)
        codecs = dataclasses.replace(codecs, averaging=names.pop() if len(names) == 1 else "raw")
    return dataclasses.replace(run, stages=stages, cut=cut, codecs=codecs)


def averagings_of(run: RunConfig, numbers: range) -> tuple[str, ...]:
    """How the sums of each of the blocks `numbers` are averaged, by the stage that it is in."""
    if len(set(run.codecs.averagings)) == 1:
        return (run.averaging_of(0),) * len(numbers)
    return _averagings(run)[numbers.start : numbers.stop]


def make_blocks(run: RunConfig, numbers: range) -> list[nn.Module]:
    """The blocks `numbers` of the model on torch's current device, without first weights."""
    dtype = DTYPES[run.model.dtype]
    made = blocks_of(family(run.model.family, run.model.package), run.model)
    if has_modules(run):
        cuts = [stage_blocks(run, stage).start for stage in range(1, run.stages)]
        made = with_modules(run, made, cuts)
    blocks = made[numbers.start : numbers.stop]
    for number, block in zip(numbers, blocks, strict=True):
        with foreign(f"{named(number, block)} cannot be used"):
            require_trainable(number, block, partial(_is_frozen, run, number, block))
            block.to(dtype)
    if run.model.tie:
        require_ends(run.model.family, made)
    if run.has_base:
        set_scope(run, numbers, blocks, len(made))
    if run.tied:
        join_ends(blocks)
    return blocks


def _is_frozen(run: RunConfig, number: int, block: nn.Module, name: str) -> bool:
    return run.has_base and is_frozen(run, full_name(number, block, name))


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


def bare_blocks(run: RunConfig, numbers: range, device: torch.device) -> list[nn.Module]:
    """The blocks `numbers` with their buffers, and without memory for parameters."""
    with torch.device("meta"):
        blocks = make_blocks(run, numbers)
    fill_buffers(run, numbers, blocks, device)
    return blocks


@torch.no_grad()
def draw_blocks(run: RunConfig, numbers: range, blocks: Sequence[nn.Module]) -> None:
    """Draw version 0 of the blocks `numbers`, or load it; it is the same on every machine.

    Of a run with a base, what trains of it.
    """
    if run.has_base:
        for number, block in zip(numbers, blocks, strict=True):
            _draw_trained(run, number, block)
        return
    if run.start == PRETRAINED:
        load_blocks(run, blocks)
        return
    for number, block in zip(numbers, blocks, strict=True):
        _draw_whole(run, number, block)


def _draw_trained(run: RunConfig, number: int, block: nn.Module) -> None:
    if run.adapter is not None:
        with PortableDraws(run.seed, number, block):
            draw_adapters(block)
    own = dict(block.named_parameters())
    for name, value in first_values(run, number, block, trained=True):
        own[name].copy_(value)


@torch.no_grad()
def first_values(
    run: RunConfig, number: int, block: nn.Module, *, trained: bool
) -> Iterator[tuple[str, Tensor]]:
    """The first values of a block's parameters that train, or of those that do not, by their names.

    Adapters are left out. The block may have no memory for them.
    """
    names = {
        name
        for name, parameter in block.named_parameters()
        if parameter.requires_grad is trained and not (run.adapter and is_of_adapter(name))
    }
    if run.start == PRETRAINED:
        yield from published_values(run, block, names)
        return
    if names:
        there = _with_memory(run, number)
        _draw_whole(run, number, there)
        own = dict(there.named_parameters())
        for name in names:
            yield name, own[name].detach()


def _with_memory(run: RunConfig, number: int) -> nn.Module:
    """A block of the model itself on the CPU, with memory for its parameters."""
    only, bare = range(number, number + 1), dataclasses.replace(run, adapter=None, base="full")
    with torch.device("meta"):
        blocks = make_blocks(bare, only)
    fill_buffers(bare, only, blocks, torch.device("cpu"))
    for name, parameter in list(blocks[0].named_parameters()):
        owner, _, last = name.rpartition(".")
        memory = nn.Parameter(torch.empty_like(parameter, device="cpu"))
        setattr(blocks[0].get_submodule(owner), last, memory)
    return blocks[0]


def _draw_whole(run: RunConfig, number: int, block: nn.Module) -> None:
    with foreign(f"{named(number, block)} cannot draw its first weights"):
        _draw_block(run, number, block)
    _require_values(number, block)


def _draw_block(run: RunConfig, number: int, block: nn.Module) -> None:
    tag = f"{TAG}:{run.seed}:{number}".encode()
    seed = int.from_bytes(hashlib.sha256(tag).digest()[:8]) % 2**63
    there = block if isinstance(block, Block) else copy.deepcopy(block).cpu()
    for parameter in there.parameters():
        unset(parameter)
    with torch.random.fork_rng(devices=[]), PortableDraws(run.seed, number, there):
        # a module of torch draws otherwise than by `normal_` and `uniform_` from this generator
        torch.manual_seed(seed)
        if isinstance(there, Block):
            there.draw(torch.Generator().manual_seed(seed))
            return
        for module in there.modules():
            if (reset := reset_of(module)) is not None:
                reset()
    for parameter, drawn in zip(block.parameters(), there.parameters(), strict=True):
        parameter.copy_(drawn)


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


@lru_cache(maxsize=COSTS_KEPT)
def _averagings(run: RunConfig) -> tuple[str, ...]:
    stages = range(run.stages)
    return tuple(run.averaging_of(stage) for stage in stages for _ in stage_blocks(run, stage))


@lru_cache(maxsize=COSTS_KEPT)
def _costs(build: Family, model: ModelConfig) -> tuple[float, ...]:
    with torch.device("meta"):
        blocks = blocks_of(build, model)
    for number, block in enumerate(blocks):
        require_sizes(number, block)
    parameters = [id(parameter) for block in blocks for parameter in block.parameters()]
    if len(set(parameters)) < len(parameters):
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


def stage_blocks(run: RunConfig, stage: int) -> range:
    """The numbers of the blocks of a stage: one or more, by `run.cut` or else `cheapest_cut`."""
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
    count, sums = len(costs), list(accumulate(costs, initial=0.0))
    none = sums[-1] + 1, 0  # there are fewer blocks than parts
    best = [0.0] + [none[0]] * count  # the cost of the first blocks, cut into the parts so far
    starts: list[list[int]] = []  # of the last part, for each number of parts
    for parts in range(stages):
        cuts = [
            min(
                ((max(best[s], sums[end] - sums[s]), s) for s in range(parts, end)),
                default=none,
            )
            for end in range(count + 1)
        ]
        best = [cost for cost, _ in cuts]
        starts.append([start for _, start in cuts])
    borders = [count]
    for row in reversed(starts):
        borders.append(row[borders[-1]])
    return borders[::-1]
