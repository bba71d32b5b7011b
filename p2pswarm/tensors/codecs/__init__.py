"""How a tensor becomes bytes and a tensor again.

Entrance: `registry.py`; a new codec is added there.
"""
