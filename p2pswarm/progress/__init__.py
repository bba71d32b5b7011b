"""The progress of a run: events, their history, and ways to show them.

Entrance: `events.py`. The roles, the demo and scripts use it.
"""
