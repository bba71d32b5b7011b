"""Frozen weights: packed, hashed once, and never averaged, saved or changed.

Entrance: `base_memory.BaseMemory`.
"""
