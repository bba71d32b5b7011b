"""Bytes: frames cut from a stream, and typed messages with hard limits.

Entrance: `message.py`. Whoever defines messages uses it.
"""
