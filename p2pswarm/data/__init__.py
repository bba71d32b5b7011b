"""Text to train on: which samples a microbatch holds.

Entrance: `text_files.load_corpus`; with a tokenizer `tokenised.load_tokenised`. Trainers use them.
For programs this folder is `p2pswarm.data`: `Bytes`, `Tokenised` and `Mixture` name the text.
"""

from p2pswarm.data.byte_text import Bytes, Mixture, Tokenised

__all__ = ["Bytes", "Mixture", "Tokenised"]
