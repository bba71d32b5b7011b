"""The trainer: microbatches, the step's commit, exactly once."""
