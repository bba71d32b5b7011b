"""What the stages of a run begin with: drawn from the seed, or named by a checkpoint's manifest.

Errors:  Unusable, one line, where that cannot be told.
"""

from collections.abc import Iterator

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.checkpoint.finding import open_checkpoint
from p2pswarm.checkpoint.loading import stage_of_cut, state_pieces
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.models.compute.first_state import first_state
from p2pswarm.models.compute.parameter_names import layout_of
from p2pswarm.models.partition import stage_blocks
from p2pswarm.models.pretrained import PRETRAINED
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom
from p2pswarm.trainer.coordinator_io.context import Proof

PORTABLE = "gpt"  # the family whose first weights are the same bits everywhere


def proof_of(run: RunIdentity, source: ResumedFrom | None) -> Proof:
    """How the states that a run begins with are proved; `source`: its checkpoint, if it has one."""
    if run.origin is None:
        return lambda stage: drawn_state(run.config, stage)
    return lambda stage: saved_state(run.config, stage, source)


def drawn_state(run: RunConfig, stage: int) -> Iterator[bytes]:
    """Make the digest of what a stage draws from the seed, in steps: the last value is it.

    A model of one's own may draw by other functions than those that give the same bits on every
    processor. Then all servers could agree, and this trainer's processor be the odd one.
    """
    if run.model.family != PORTABLE and run.start != PRETRAINED:
        raise Unusable(f"family {run.model.family!r} may draw otherwise on other processors")
    yield from first_state(run, stage)


def saved_state(run: RunConfig, stage: int, source: ResumedFrom | None) -> Iterator[bytes]:
    """Make the digest of a stage of a checkpoint, in steps: the last value that comes is it.

    The manifest names it, unless the checkpoint is of another cut: then its bytes are read.
    """
    if source is None:
        raise Unusable("it is not known where the checkpoint lies that the run began from")
    checkpoint = open_checkpoint(open_store(source.target), source.folder)
    if checkpoint.digest != source.origin.checkpoint:
        raise Unusable(f"{checkpoint.place} is not the checkpoint that the run began from")
    blocks = stage_blocks(run, stage)
    if (saved := stage_of_cut(checkpoint.manifest, blocks)) is not None:
        yield saved.state_digest
        return
    layout = layout_of(run, blocks)
    hasher = StateHasher(layout)
    for piece in state_pieces(checkpoint, layout):
        hasher.update(piece)
        yield b""
    yield hasher.digest()
