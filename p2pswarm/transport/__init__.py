"""Links: encrypted, multiplexed, one to each peer.

Entrance: `endpoint.Endpoint`. `rpc/` uses it, through the events of `events.py`.
"""
