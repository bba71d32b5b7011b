"""Models as lists of blocks, what crosses between blocks, and their partition into stages.

Entrance: `registry.register`, `blocks.make_blocks`, `boundary.boundaries`,
`partition.stage_blocks`. `models/compute/` and the roles use them. For programs this folder is
`p2pswarm.models`: `GPT` has the settings of the built-in family, `register` adds another.
"""

from p2pswarm.models.registry import register
from p2pswarm.settings.config import ModelConfig

GPT = ModelConfig

__all__ = ["GPT", "register"]
