"""Waits: where a server's seconds go, and what it has to do or waits for.

Enter at `own_waits.py`, which the parts of a session tell what they do.
"""
