"""Seam 2, typed calls and exchanges with deadlines."""
