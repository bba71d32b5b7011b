"""The download of weights and optimizer state: donors serve snapshots, newcomers fetch them.

Entrance: `donor.Donor`, `download.fetch`. Servers and the trainer use them.
"""
