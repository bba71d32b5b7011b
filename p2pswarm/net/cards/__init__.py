"""Cards: the addresses that a peer signs, which are believed, and in which order they are dialled.

Entrance: `node_cards.NodeCards`. See docs/addresses.md.
"""
