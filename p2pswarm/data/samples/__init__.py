"""Rows of tokens out of text: which are drawn, in which order, and which of them are targets."""
