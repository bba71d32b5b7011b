"""Butterfly all-reduce among the replicas of a stage."""
