"""Models as lists of blocks, and their partition into stages.

Entrance: `blocks.make_blocks`, `partition.stage_blocks`. `compute/` and the roles use them.
Programs meet this folder as `p2pswarm.models`: `GPT` is the settings of the built-in family.
"""

from p2pswarm.config import ModelConfig

GPT = ModelConfig

__all__ = ["GPT"]
