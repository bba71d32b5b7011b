"""Models as lists of blocks, what crosses between blocks, and their partition into stages.

Entrance: `registry.register`, `blocks.make_blocks`, `boundary.boundaries`,
`partition.stage_blocks`. `compute/` and the roles use them. Programs meet this folder as
`p2pswarm.models`: `GPT` is the settings of the built-in family, `register` adds another.
"""

from p2pswarm.config import ModelConfig
from p2pswarm.models.registry import register

GPT = ModelConfig

__all__ = ["GPT", "register"]
