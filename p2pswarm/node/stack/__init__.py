"""The network stack of a node: its endpoint, its addresses, and how others reach it.

Entrance: `stack.open_stack`. Every role, and the commands that ask a swarm, use it.
"""
