"""Checkpoints: the state of a run in files, from which it goes on with the same bits.

Entrance: `saving.save_stage` and `saving.publish` write, `finding.newest_good` and
`loading.load_stage` read, `verification.verify` checks, `retention.prune` deletes what is old
enough. Servers, trainers and the command line use them. docs/checkpoints.md describes the files.
"""
