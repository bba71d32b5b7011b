"""Models as lists of blocks, and their partition into stages.

Entrance: `blocks.make_blocks`, `partition.stage_blocks`. `compute/` and the roles use them.
"""
