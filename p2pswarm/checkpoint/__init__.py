"""Checkpoints: the state of a run in files, from which it goes on with the same bits.

Entrance: `checkpoint_io.save_stage` and `writer.write_manifest` write, `catalogue.newest_good` and
`checkpoint_io.load_stage` read, `verification.verify` checks, `retention.prune` deletes what is old
enough. docs/checkpoints.md describes the files.
"""
