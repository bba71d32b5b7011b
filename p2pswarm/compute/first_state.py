"""The digest of a stage's state of version 0, made from the seed, one block in memory at a time.

A trainer computes it to tell which servers have drawn their first weights right. It may be smaller
than any of them: it needs the weights of one block, and no moments.

Units:   elements of the run's dtype.
Errors:  Unusable for a model that this machine cannot make.
"""

# ruff: noqa: N806  shapes are written at the end of names

from collections.abc import Iterator
from itertools import pairwise

import torch

from p2pswarm.checkpoint.state_hash import StateHasher
from p2pswarm.compute.flat_parameters import bare_blocks, bind, block_layout, zero_buffer
from p2pswarm.compute.parameter_names import layout_of
from p2pswarm.compute.torch_errors import setting_up
from p2pswarm.config import RunConfig
from p2pswarm.models.blocks import draw_blocks
from p2pswarm.models.partition import stage_blocks
from p2pswarm.models.tying import shared_name
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.flat_layout import STATE_TENSORS, FlatLayout

ZEROS = bytes(1 << 20)


def first_state(run: RunConfig, stage: int) -> Iterator[bytes]:
    """Make the digest, a block at a time: the last value that comes is it."""
    numbers = stage_blocks(run, stage)
    with setting_up(stage):
        layout = layout_of(run, numbers)
        hasher = StateHasher(layout)
        for weights in _weights(run, numbers):
            hasher.update(weights)
            yield b""
        left = (STATE_TENSORS - 1) * layout.length * layout.item_bytes  # the moments are zero
        while left:
            hasher.update(ZEROS[:left])
            left -= min(left, len(ZEROS))
        for weights in _weights(run, numbers) if run.optimizer.average_decay else ():
            hasher.update(weights)  # their average begins as they do
            yield b""
    yield hasher.digest()


def _weights(run: RunConfig, numbers: range) -> Iterator[memoryview]:
    """The first weights of one block after another."""
    cpu = torch.device("cpu")
    blocks = bare_blocks(run, numbers, cpu)
    apart = shared_name(blocks)  # None also where both ends of a tied model are here
    for number in numbers:
        block, only = blocks.pop(0), range(number, number + 1)
        part = block_layout(run, only, [block])
        params_N = zero_buffer(part, cpu)
        bind([block], part, params_N)
        draw_blocks(run, only, [block])
        tied = shared_name([block])
        if tied is None or apart is not None or number == numbers[0]:
            yield bytes_of(params_N)
        else:
            yield _without(tied, bytes_of(params_N), part)


def _without(name: str, flat: memoryview, layout: FlatLayout) -> memoryview:
    """A flat buffer without one tensor and the gap behind it: another block has it."""
    borders = [tensor.start * layout.item_bytes for tensor in layout.tensors]
    spans = zip(layout.tensors, pairwise([*borders, flat.nbytes]), strict=True)
    return memoryview(b"".join(flat[a:b] for tensor, (a, b) in spans if tensor.name != name))
