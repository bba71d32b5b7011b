"""Proves what the state of each stage has to be where a run begins.

No record names these states yet. The digest of one follows from the seed, or from the checkpoint
that the run goes on from, so a trainer can make it without the word of a server. It takes as long
as drawing or reading the model, on a thread that lets all others go first; nobody waits for it
unless servers differ.

Errors:  none; what cannot be proved is told as None.
"""

import logging
from collections.abc import Callable, Iterator

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.checkpoint_io import last_of

log = logging.getLogger(__name__)

Proof = Callable[[int], Iterator[bytes]]
"""Makes the digest of a stage's state, in steps; the last value counts. Blocks, raises Unusable."""


async def prove_states(
    proof: Proof,
    stages: int,
    disputed: Callable[[], list[int]],
    told: Callable[[int, bytes | None], None],
) -> None:
    """Tell the digest of every stage, first of those that are disputed."""
    left = list(range(stages))
    while left:
        stage = min(left, key=lambda one: (one not in disputed(), one))
        left.remove(stage)
        try:
            digest = await last_of(lambda stage=stage: proof(stage))  # type: ignore[misc]
        except Unusable as error:
            log.warning("what stage %d begins with cannot be proved: %s", stage, error)
            told(stage, None)
        else:
            told(stage, digest)
