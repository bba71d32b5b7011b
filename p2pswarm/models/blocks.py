"""A model as a list of blocks: how they are made, and their first weights.

The first weights of a block are a function of the seed and the block's number alone. So whoever
serves a stage can make version 0 of it, and one process can make all of it for comparison.

Errors:  none; the configuration has been checked.
"""

import hashlib

import torch

from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.models.base import DTYPES, Block
from p2pswarm.models.gpt import Embedding, Head, Layer


def block_count(model: ModelConfig) -> int:
    """Embedding, layers, head."""
    return model.layers + 2


def make_blocks(run: RunConfig, numbers: range) -> list[Block]:
    """The blocks `numbers` of the model, with storage but without values."""
    model, dtype = run.model, DTYPES[run.model.dtype]
    last = block_count(model) - 1
    kinds = {0: Embedding, last: Head}
    return [kinds.get(number, Layer)(model, dtype) for number in numbers]


@torch.no_grad()
def draw_blocks(run: RunConfig, numbers: range, blocks: list[Block]) -> None:
    """Version 0 of the blocks `numbers`: the same wherever it is made."""
    for number, block in zip(numbers, blocks, strict=True):
        tag = f"p2pswarm-init-1:{run.seed}:{number}".encode()
        seed = int.from_bytes(hashlib.sha256(tag).digest()[:8])
        block.draw(torch.Generator().manual_seed(seed % 2**63))
