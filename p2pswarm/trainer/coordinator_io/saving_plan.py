"""What the trainer of a run that is saved is given once: where to, when, and what to write.

Errors:  ValueError for values that cannot be written.
"""

import dataclasses
from dataclasses import dataclass

from p2pswarm.checkpoint.manifest import CheckpointManifest, Cursor
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.writer import chain_file
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.manifest import RunOrigin
from p2pswarm.run.messages.checkpoint import LoadState
from p2pswarm.run.messages.run import CheckpointOrigin
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import CheckpointConfig, RunConfig
from p2pswarm.settings.parser import run_to_json
from p2pswarm.trainer.coordinator_io.checkpoints import WriteManifest


@dataclass(frozen=True, slots=True)
class ResumedFrom:
    """The checkpoint that a run goes on from, or goes back to, and where it lies."""

    origin: RunOrigin
    target: str
    folder: str
    """Of the checkpoint in the target; empty if the target is the checkpoint."""

    def order(self, run: bytes) -> LoadState:
        """What a new member is told."""
        source = CheckpointOrigin(*dataclasses.astuple(self.origin))
        return LoadState(run, self.target, self.folder, source)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavingPlan:
    """The checkpoints of one run."""

    config: CheckpointConfig
    store: CheckpointStore
    """The target, as this machine reaches it."""
    identity: Identity
    """Signs the manifests."""
    corpus: bytes
    """The digest of the text."""


def manifest_of(
    plan: SavingPlan,
    run: tuple[RunConfig, bytes],
    what: WriteManifest,
    records: bytes | None,
) -> CheckpointManifest:
    """The manifest of a checkpoint; `run`: its configuration and its id."""
    (config, run_id), version = run, what.version
    return CheckpointManifest(
        run=run_id,
        config=run_to_json(config),
        step=version,
        head=what.head,
        chain=None if records is None else chain_file(records),
        cursor=Cursor(
            optimizer_step=version,
            next_microbatch=version * config.batch.microbatches,
            next_learning_rate=learning_rate(config, version),
            seed=config.seed,
            corpus=plan.corpus,
        ),
        stages=what.stages,
    )
