"""A node: the process, its network stack, and the roles that it takes up.

Entrances: `node_process.main`, `stack.open_stack`, and the `run` of each role.
"""
