"""The rules of a trainer that leads: reports go in, actions come out.

Entrance: `coordinator.Coordinator`.
"""
