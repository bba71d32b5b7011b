"""The demo: a swarm of processes on one machine, with servers killed on the way.

Entrance: `demo.demo`. The command line uses it.
"""
