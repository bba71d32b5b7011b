"""Rounding by seeded chance: of weights that are kept in bfloat16, and of gradients on a grid.

Entrance: `gradient_grid.GradientGrid` and `stochastic_round.ChanceRounding`.
"""
