"""The download of weights and optimizer state: donors serve snapshots, newcomers fetch them.

Entrance: `donor.Donor`, `download.fetch`. Servers and the trainer use them. The rules that will
take their place are in `piece_download` (docs/state.md).
"""
