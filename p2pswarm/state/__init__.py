"""Weights and optimizer state for newcomers."""
