"""Limits on strangers: handshakes, links, bans, floods, open files.

Entrance: `admission.Admission`. Links use them. See docs/bans.md.
"""
