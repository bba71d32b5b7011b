"""Whole swarms in virtual time: the real protocol code over simulated networks and processors.

Entrance: `swarm.SimSwarm`, `dht.DhtWorld`, `net.SimInternet`. Tests and benches use them.
"""
