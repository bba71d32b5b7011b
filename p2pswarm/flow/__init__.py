"""Estimates of how fast and how long, and what went wrong first in a group of tasks."""
