"""Text to train on: which samples a microbatch holds.

Entrance: `text_files.load_corpus`. Trainers use it. For programs this folder is `p2pswarm.data`:
`Bytes` names the text.
"""

from p2pswarm.data.byte_text import Bytes

__all__ = ["Bytes"]
