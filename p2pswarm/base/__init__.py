"""The ground floor: errors, ids, files, estimates, signals.

Entrances: `errors.py`, `ids.py`.
"""
