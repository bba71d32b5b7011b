"""The messages of a run, one module for each protocol. docs/training.md explains them.

A field that breaks its limit raises BadMessage on arrival.
"""
