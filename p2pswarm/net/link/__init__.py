"""A link as a machine: encrypted and multiplexed streams over connections that may break.

Entrance: `link.LinkMachine`. The endpoint drives it; `mux.py` has the streams.
"""
