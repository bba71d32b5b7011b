"""Taking microbatches in and computing them, one after another."""
