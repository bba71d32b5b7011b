"""How weights lie in memory, and modules that compute from packed ones.

Entrance: `weight_formats.format_named`.
"""
