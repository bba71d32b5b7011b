"""Cards: the addresses that a peer signs, which of them are believed, and in which order they are
dialled.

Entrances: `node_cards.NodeCards`, `card_exchange.CardExchange`. See docs/addresses.md.
"""
