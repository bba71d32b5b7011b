"""The trainer: it launches, fences, reduces and commits, so that each microbatch counts once.

Entrance: `trainer.Trainer`; the rules are in `coordinator.py`. Roles and the simulation use it.
"""
