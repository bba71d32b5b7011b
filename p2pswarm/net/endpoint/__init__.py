"""The endpoint of a node: it dials, accepts, and owns one link for each peer.

Entrance: `endpoint.Endpoint`. `rpc/` uses it, through the events of `link/events.py`.
"""
