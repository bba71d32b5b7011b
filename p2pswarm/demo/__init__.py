"""The demo: a swarm of processes on one machine, with servers killed on the way.

Entrance: `demo.main`. The command line uses it.
"""
