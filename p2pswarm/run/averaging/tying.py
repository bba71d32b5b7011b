"""The tensor that the first and the last stage of a tied model have in common, as it is averaged.

One order makes two averagings of a member at an end: of all but that tensor, with its own stage;
and of that tensor, with the members of both stages. The sums of the first stage hold the gradient
of the embedding, those of the last that of the head, of the same microbatches. Each is in the group
once, so what all get is the gradient of the tensor.

Source:  docs/tied_weights.md.
"""

import hashlib
from dataclasses import replace

from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.messages.step import Reduce, TiedGroup

DIGEST_BYTES = 32


def tied_order(order: Reduce, tied: TiedGroup) -> Reduce:
    """The order of the second averaging."""
    return replace(
        order,
        group=tied.group,
        observers=tied.observers,
        shares=tied.shares,
        prompt=0,  # nobody prepares for an end beside another stage
        tied=None,
    )


def joined(
    rest: AveragedGradient, tied: AveragedGradient, bytes_per_s: float = 0.0
) -> AveragedGradient:
    """Return what both averagings gave, as one; `bytes_per_s`: what the links carried for both."""
    digest = hashlib.blake2b(rest.digest + tied.digest, digest_size=DIGEST_BYTES).digest()
    return AveragedGradient(digest, rest.squared_norm, bytes_per_s, tied)
