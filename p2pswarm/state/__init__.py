"""The download of weights and optimizer state: donors serve snapshots, newcomers fetch them.

Entrance: `donor.Donor`, `download.fetch`. Servers and the trainer use them. `piece_download` has the
rules that will take their place (docs/state.md).
"""
