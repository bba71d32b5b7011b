"""What awaits for the coordinator: streams to the members, dispatch of microbatches, checkpoints.

Entrance: `coordinator_io.CoordinatorIo`.
"""
