"""Small tools for every folder: estimates, a signal, and the cause of a task group's failure.

Entrance: `estimates.py`, `signal.py` and `exception_group.py`.
"""
