"""Butterfly all-reduce among the replicas of one stage.

Entrance: `averaging.Averaging`. Servers use it.
"""
