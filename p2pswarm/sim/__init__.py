"""Whole swarms in virtual time: the real protocol code over simulated networks and processors.

Entrance: `swarm.SimSwarm`; `day.SimDay` for the command `p2pswarm simulate`.
"""
