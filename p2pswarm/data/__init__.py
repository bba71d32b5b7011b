"""Text to train on: which samples a microbatch holds.

Entrance: `text_files.load_corpus`. Trainers use it.
"""
