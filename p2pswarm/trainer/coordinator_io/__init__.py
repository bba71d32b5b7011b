"""The coordinator's shell: streams to the members, dispatch of microbatches, checkpoints.

Entrance: `coordinator_io.CoordinatorIo`.
"""
