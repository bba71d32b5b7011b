"""The digest of a stage's state of version 0, made from the seed, one block in memory at a time.

A trainer computes it to tell which servers have drawn their first weights right. It may be smaller
than any of them: it needs the weights of one block, and no moments.

Units:   bytes.
Errors:  Unusable for a model that this machine cannot make.
"""

# ruff: noqa: N806  shapes are written at the end of names

from collections.abc import Iterator

from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.models.base import DTYPES
from p2pswarm.models.compute.flat_parameters import first_weights
from p2pswarm.models.compute.parameter_names import layout_of
from p2pswarm.models.compute.torch_errors import setting_up
from p2pswarm.models.partition import stage_blocks
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.flat_layout import STATE_TENSORS

ZEROS = bytes(1 << 20)


def first_state(run: RunConfig, stage: int) -> Iterator[bytes]:
    """Make the digest, a block at a time: the last value that comes is it."""
    numbers = stage_blocks(run, stage)
    with setting_up(stage):
        layout = layout_of(run, numbers)
        hasher = StateHasher(layout)
        kept, *wide = (DTYPES[dtype] for dtype in layout.dtypes)
        for part_N in first_weights(run, numbers):
            hasher.update(bytes_of(part_N.to(kept)))
            yield b""
        moments = layout.item_bytes[1:STATE_TENSORS]
        left = layout.length * sum(moments)  # they are zero
        while left:
            hasher.update(ZEROS[:left])
            left -= min(left, len(ZEROS))
        for part_N in first_weights(run, numbers) if run.optimizer.average_decay else ():
            hasher.update(bytes_of(part_N.to(kept).to(wide[-1])))  # it begins as they do
            yield b""
    yield hasher.digest()
