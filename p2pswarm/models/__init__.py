"""Models as lists of blocks, what crosses between blocks, and their partition into stages.

Entrance: `registry.register`, `blocks.make_blocks`, `boundary.boundaries`,
`partition.stage_blocks`. `compute/` and the roles use them.
"""
