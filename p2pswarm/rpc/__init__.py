"""Seam 2: typed unary calls and streams with deadlines, over links.

Entrance: `link_rpc.LinkRpc`, through the Protocols of `base.py`. Every protocol above uses it.
"""
