"""Punching: two peers behind NATs dial each other at once, and their link leaves its relay.

Entrance: `Puncher` in `puncher.py`, which offers its ways to the endpoint. Rules:
`candidates.py`, `dial_schedule.py`, `limits.py`, `observed_addresses.py`. It stands above rpc,
beside `reach/nat/` and `reach/relay/`, and imports neither: it works with whatever relay carries
the link. Roles use it. The page: docs/punching.md.
"""
