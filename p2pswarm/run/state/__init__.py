"""The download of weights and optimizer state, piece by piece, from several donors (docs/state.md).

Entrance: `donor.Donor`, `piece_download_io.Download`; `version_reader.VersionReader` for whoever
reads the weights while training goes on. Servers and the trainer use them.
"""
