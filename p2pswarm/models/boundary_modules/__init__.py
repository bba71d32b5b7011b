"""Modules at a cut: the sender's half makes few values of a row, the receiver's half many of them.

Entrance: `kinds.pair_of`. `models/boundary_block.py` puts the halves at the ends of blocks.
docs/boundary_modules.md has the table.
"""
