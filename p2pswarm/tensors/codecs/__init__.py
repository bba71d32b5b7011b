"""Codecs: ways to encode a tensor as bytes and to decode it.

Entrance: `registry.py`; a new codec is added there.
"""
