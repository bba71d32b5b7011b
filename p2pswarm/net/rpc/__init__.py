"""Seam 2: typed unary calls and streams with deadlines, over links.

Entrance: `link_rpc.LinkRpc`, used through the Protocols of `base.py` by every protocol above.
"""
