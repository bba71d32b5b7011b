"""Limits on strangers: handshakes, links, bans, floods, open files.

Entrances: `slots`, `fair_queue`, `bans.PeerBans`. The endpoint uses them. See docs/bans.md.
"""
