"""What a run tells people: events, their history, and how they are shown.

Entrance: `events.py`. Roles, the demo and scripts use it.
"""
