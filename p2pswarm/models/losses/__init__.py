"""Losses beside that of the scores."""
