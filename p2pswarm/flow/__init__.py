"""Estimates of times and rates, and what went wrong first in a group of tasks.

Everybody may use it.
"""
