"""Models as lists of blocks, what crosses between blocks, and their partition into stages.

Entrance: `registry.register`, `blocks.make_blocks`, `boundary.boundaries`,
`partition.stage_blocks`. `compute/` and the roles use them. For programs this folder is
`p2pswarm.models`: `GPT` has the settings of the built-in family, `register` adds another.
"""

from p2pswarm.config import ModelConfig
from p2pswarm.models.registry import register

GPT = ModelConfig

__all__ = ["GPT", "register"]
