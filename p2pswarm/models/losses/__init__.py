"""Losses of a model: of its scores, and of its routers."""
