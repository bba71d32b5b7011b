"""The rules of a trainer that leads: inputs go in, actions come out.

Entrance: `coordinator.Coordinator`; which rule follows from which change: its table of rules.
"""
