"""Relays: peers that cannot dial each other meet at a third one, which passes on their bytes.

`relay.py` is the relay, with the rules in `relay_table.py` and `fair_rate.py`; `reservations_io.py`
keeps a node's reservations, with the rules in `reservations.py`; `circuit_net.py` is a network
whose `dial` also goes through relays. Roles use all three. The page: docs/relays.md.
"""
