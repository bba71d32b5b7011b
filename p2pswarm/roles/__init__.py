"""The roles of a node: bootstrap, stage server, trainer. Each composes the parts of its process.

Entrance: `stack.open_stack` and the `run` of each role. `node.py` uses them.
"""
