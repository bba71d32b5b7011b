"""The demo: a swarm of processes on one machine, with servers killed while it trains.

Entrance: `demo.main`. The command line uses it.
"""
