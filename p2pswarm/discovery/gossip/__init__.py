"""The directory of a run: who is there, where, how busy; spread among its members by gossip.

Entrance: `Directories` in `directory_io.py`, one for each node. Used by roles and the simulation.
It decides nothing about a run: its coordinator says who is a member. See docs/directory.md.
"""
