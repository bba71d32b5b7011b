"""Text to train on: which samples a microbatch holds.

Entrance: `text_stream.streamed`, `text_files.load_corpus`, `token_corpus.load_tokenised`.
For programs this folder is `p2pswarm.data`: `Bytes`, `Tokenised` and `Mixture` name the text.
"""

from p2pswarm.data.text_settings import Bytes, Mixture, Tokenised

__all__ = ["Bytes", "Mixture", "Tokenised"]
