"""The version that a run rolls back to when a stage has lost its weights: its newest checkpoint.

Errors:  Unusable where there is nothing to go back to, or to load.
"""

from contextlib import suppress
from dataclasses import dataclass

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.catalogue import Checkpoint, folders, newest_good, open_checkpoint
from p2pswarm.checkpoint.checkpoint_manifest import CheckpointManifest
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.run.chain.chain import Branch, Digests
from p2pswarm.run.chain.record import NO_DIGEST
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom, SavedChain, SavingPlan

FIRST_WEIGHTS = "the first weights, which are drawn from the seed"


@dataclass(frozen=True, slots=True)
class Rollback:
    """The version that becomes current again.

    A checkpoint fits if the chain leads to it: a run that has rolled back before has made some
    versions twice, and only the newer ones are on the branch that stands. Without any checkpoint a
    run goes back to its beginning. All functions block, because they read the target.
    """

    version: int
    states: Digests
    """Of each stage's state of that version."""
    source: ResumedFrom | None
    """Its checkpoint; None: it is drawn from the seed."""
    place: str
    """For people."""
    refusals: tuple[str, ...] = ()
    """Newer checkpoints that could not be used, each with its reason."""


@dataclass(frozen=True, slots=True)
class SavedPast:
    """The past of a run, and where it is saved, as its trainer knows them."""

    plan: SavingPlan
    chain: SavedChain
    run: bytes
    config: RunConfig
    origin: ResumedFrom | None
    """Origin of the run, and where it lies, if that is known."""
    began: RunOrigin | None = None
    """Origin of the run, which its id covers; None: the first weights."""

    def going_back(self, saved: int) -> Rollback:
        """The newest version that all servers can load, every byte of which was read just now.

        `saved`: the newest version that is known to be saved. If it can be read no more, nor an
        older one, the run does not lose all of its work for that.
        """
        branch, base = self.chain.branch(), self.chain.genesis.version
        wanted = Wanted(run=self.run, config=self.config, corpus=self.plan.corpus)
        try:
            found = newest_good(
                self.plan.store,
                wanted,
                lambda one: self._misfit(one, branch, self.chain.head.version),
            )
        except Unusable:
            if saved > base:
                raise
            return self._beginning(branch)
        source, manifest = self._source(found.checkpoint), found.checkpoint.manifest
        states = tuple(stage.state_digest for stage in manifest.stages)
        place = found.checkpoint.place
        return Rollback(manifest.step, states, source, place, found.refusals)

    def present(self) -> ResumedFrom:
        """Return where the version lies that the chain has gone back to, or that it begins with."""
        genesis, version = self.chain.genesis, self.chain.head.version
        if version == genesis.version and self.origin is not None:
            return self.origin
        branch, store = self.chain.branch(), self.plan.store
        if version == genesis.version and (found := self._begun()) is not None:
            return found
        for name in folders(store):
            if name.step != version:
                continue
            try:
                checkpoint = open_checkpoint(store, name.text, Wanted(config=self.config))
            except Unusable:
                continue
            manifest = checkpoint.manifest
            if manifest.run == self.run and not self._misfit(manifest, branch, version):
                return self._source(checkpoint)
        raise Unusable(
            f"{store.place} has no checkpoint of step {version} of this run, which its servers "
            "are to load: name the target that has it"
        )

    def _begun(self) -> ResumedFrom | None:
        """The checkpoint that the run began from, if it is in the target."""
        if (began := self.began) is None:
            return None
        for name in folders(self.plan.store):
            if name.step == began.version and name.is_of(began.run):
                with suppress(Unusable):
                    if open_checkpoint(self.plan.store, name.text).digest == began.checkpoint:
                        return ResumedFrom(began, self.plan.config.target, name.text)
        return None

    def _beginning(self, branch: Branch) -> Rollback:
        """The version that the run began with."""
        genesis = self.chain.genesis
        states = branch.states(genesis.version)
        if states is None:
            raise Unusable("the run has lost nothing yet")
        if genesis.checkpoint == NO_DIGEST:
            return Rollback(genesis.version, states, None, FIRST_WEIGHTS)
        source = self.origin
        if source is None:
            raise Unusable("it is not known where the checkpoint lies that the run began from")
        return Rollback(genesis.version, states, source, f"{source.target}/{source.folder}")

    def _misfit(self, manifest: CheckpointManifest, branch: Branch, version: int) -> str | None:
        """Return why a checkpoint of this run is not of its past; None if it is."""
        step, states = manifest.step, tuple(one.state_digest for one in manifest.stages)
        if step > version or manifest.head != branch.made(step):
            return f"step {step} of this run was taken back: it has gone on without it"
        if branch.states(step) not in (None, states):
            return f"it is not the step {step} that the run's records name"
        return None

    def _source(self, checkpoint: Checkpoint) -> ResumedFrom:
        manifest = checkpoint.manifest
        origin = RunOrigin(manifest.run, manifest.step, checkpoint.digest)
        return ResumedFrom(origin, self.plan.config.target, checkpoint.folder)
