"""Reachability: whether others can dial this node, where, and who is believed about it.

Entrance: `Reachability` in `reachability_io.py`. It stands above rpc and below the DHT; nodes and
`p2pswarm doctor` use it. States, timers, messages: docs/reachability.md.
"""
