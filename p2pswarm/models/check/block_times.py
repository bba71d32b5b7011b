"""The time of each block of a model on this machine, for a cut of blocks that are not alike.

The cut that a run has by itself weighs blocks by their `cost`, or by the number of their
parameters. A convolution has few parameters and much to do, and an embedding has many and nothing.
Here each block is made alone, in its full size, and computes what the one before it gave: forward
and backward, as a stage of its own would, in the run's precision.

Shapes:  tokens_BS as `base.py`.
Errors:  Unusable for a model that cannot be cut, or that the machine has no memory for.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

from collections.abc import Callable
from dataclasses import replace

import torch

from p2pswarm.models.base import Bundle
from p2pswarm.models.blocks import block_count, cut_into
from p2pswarm.models.check.model_check import KEEP_ALL, SPEC, tokens_of
from p2pswarm.models.compute.base import Key
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.torch_device import computing
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.settings.config import RunConfig

TURNS = 5  # the fastest counts: what else the machine does only makes one slower


@computing()
def block_times_s(
    run: RunConfig, device: torch.device, clock: Callable[[], float]
) -> tuple[float, ...]:
    """Forward and backward of one microbatch, of each block."""
    count = block_count(run.model)
    model = replace(run.model, boundary="none")  # the modules of a cut that is not made
    alone = replace(cut_into(run, count, (1,) * count), model=model, start="random", delay=0)
    tokens_BS = tokens_of(run)
    times_s, given = [], Bundle()
    for number in range(count):
        flat = FlatParameters(alone, range(number, number + 1), device)
        flat.draw()
        stage = TorchStage(alone, number, flat, KEEP_ALL)
        took_s = []
        for turn in range(1 + TURNS):  # the first one takes memory, and compiles
            begun_s = clock()
            made = _computed(stage, (turn, 0), tokens_BS, given, last=number == count - 1)
            took_s.append(clock() - begun_s)
        times_s.append(min(took_s[1:]))
        given = made
    return tuple(times_s)


def _computed(
    stage: TorchStage, key: Key, tokens_BS: torch.Tensor, given: Bundle, *, last: bool
) -> Bundle:
    """One microbatch through one block, and back; what the block gave."""
    if last:
        stage.finish(tokens_BS, given, SPEC)
        return {}
    made = stage.forward(key, tokens_BS, given)
    stage.backward(key, {name: torch.ones_like(x) for name, x in made.items()}, SPEC)
    return made
