"""Links: encrypted and multiplexed connections, one in use for each peer.

Entrance: `endpoint.Endpoint`. `rpc/` uses it, through the events of `events.py`.
"""
