"""A report of a node for a stranger who mends a bug: what it has, and nothing that is secret.

Entrance: `archive` in `bug_report.py`, from a `BugReport` to the bytes of an archive.
"""
