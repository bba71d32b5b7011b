"""What a node can be: bootstrap, stage server, trainer. The parts are composed here.

Entrance: `stack.open_stack` and the `run` of each role. `node.py` uses them.
"""
