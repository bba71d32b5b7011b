"""The trainer: it launches, fences, reduces and commits, so that each microbatch counts once.

Entrance: `leadership/participant.py`; the rules begin in `coordinator/coordinator.py`.
"""
