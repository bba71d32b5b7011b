"""Handing microbatches on to the next stage, and gradients back."""
