"""The checkpoint that a run goes on from, and the plan of those that it writes. All blocks.

Errors:  Unusable when there is no checkpoint to go on from, or the target cannot be written.
"""

from collections.abc import Callable

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.finding import (
    Checkpoint,
    check_bytes,
    newest_good,
    open_checkpoint,
    reading,
)
from p2pswarm.checkpoint.names import MANIFEST_NAME
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.targets import open_store, require_writable
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.manifest import RunOrigin
from p2pswarm.settings.config import CheckpointConfig, RunConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom, SavingPlan

Say = Callable[[str], None]


def resumed_from(target: str, run: RunConfig, corpus: bytes, say: Say) -> ResumedFrom | None:
    """The newest checkpoint at `target` from which the run computes the same bits.

    Every byte of it is read. `say` is told each newer one that cannot be used, with the reason.
    None without a target.
    """
    if not target:
        return None
    checkpoint = _checkpoint(open_store(target), Wanted(config=run, corpus=corpus), say)
    manifest = checkpoint.manifest
    if manifest.step >= run.steps:
        raise Unusable(
            f"{checkpoint.place} is of step {manifest.step}, and the run ends at step {run.steps}: "
            "there is nothing left to train; raise run.steps (and set run.optimizer.decay_steps)"
        )
    stages = len(manifest.stages)
    say(
        f"going on from step {manifest.step} of {checkpoint.place} "
        f"({stages} {'stage' if stages == 1 else 'stages'}, signed by {checkpoint.signer.short})"
    )
    origin = RunOrigin(manifest.run, manifest.step, checkpoint.digest)
    return ResumedFrom(origin, target, checkpoint.folder)


def saving_plan(config: CheckpointConfig, identity: Identity, corpus: bytes) -> SavingPlan | None:
    """The plan of a run's checkpoints, if its target can be written; None without a target."""
    if not config.target:
        return None
    writer = identity.peer_id.short
    store = open_store(config.target, writer)
    require_writable(store, writer)
    return SavingPlan(config=config, store=store, identity=identity, corpus=corpus)


def require_target(config: CheckpointConfig, writer: str) -> None:
    """Raise Unusable if checkpoints are to be written where nothing can be.

    `writer`: the short form of our peer id.
    """
    if config.target:
        require_writable(open_store(config.target, writer), writer)


def _checkpoint(store: CheckpointStore, wanted: Wanted, say: Say) -> Checkpoint:
    with reading(store.place):
        itself = MANIFEST_NAME in store.entries()
    if itself:
        checkpoint = open_checkpoint(store, "", wanted)
        check_bytes(checkpoint, wanted)
        return checkpoint
    found = newest_good(store, wanted)
    for refusal in found.refusals:
        say(refusal)
    return found.checkpoint
