"""The classes that `import p2pswarm` offers to programs: a node, a server, a run, a trainer.

Entrance: the names in `p2pswarm/__init__.py`. Nothing in the package imports this folder.
"""
