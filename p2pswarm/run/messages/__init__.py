"""The messages of a run, one module for each protocol. docs/training.md explains them."""
