"""Butterfly all-reduce among the replicas of one stage.

Entrance: `stage_averaging.StageAveraging`. Servers use it.
"""
