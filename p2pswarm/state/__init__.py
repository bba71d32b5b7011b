"""Weights and optimizer state for newcomers. Entrance: `donor.Donor`, `download.fetch`.

Servers and the trainer use them.
"""
