"""Stalls: when a step takes far longer than others, who waits for whom, seen from both ends.

Enter at `stall_watch.py`; `verdict.py` joins the trainer's view and the servers' own.
"""
