"""The beginning of a run: first states, or a checkpoint whose records are proven.

Errors:  BadCheckpoint, one line, for records that do not lead to a checkpoint; Unusable when there
         is none to go on from, its states cannot be told, or the target cannot be written.
"""

from collections.abc import Callable, Iterable, Iterator

from p2pswarm.base.errors import BadCheckpoint, PeerError, Unusable
from p2pswarm.checkpoint.catalogue import (
    Checkpoint,
    check_bytes,
    newest_good,
    open_checkpoint,
    reading,
)
from p2pswarm.checkpoint.checkpoint_manifest import CheckpointManifest
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.checkpoint.names import MANIFEST_NAME
from p2pswarm.checkpoint.restore import stage_as_saved, state_pieces, taken_kinds
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.targets import open_store, require_writable
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.models.compute.torch_weights import first_state
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.chain.chain import Chain, Genesis
from p2pswarm.run.chain.chain_log import HEADER_BYTES, LogReader, read_header
from p2pswarm.run.chain.record import CommitRecord, RecordKind
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.codec_ladder import CodecChoices
from p2pswarm.settings.config import PRETRAINED, RunConfig
from p2pswarm.settings.node_config import CheckpointConfig
from p2pswarm.trainer.coordinator_io.checkpoint_donor_io import roots_under
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom, SavingPlan
from p2pswarm.trainer.coordinator_io.trainer_context import Proof

NAME = "the file of records"
PORTABLE = "gpt"  # the family whose first weights are the same bits everywhere

Say = Callable[[str], None]


def check_records(parts: Iterable[bytes], manifest: CheckpointManifest) -> str:
    """Check every record and what it follows; returns what was found, for people.

    `parts`: the bytes of the file. Who founded the run is taken from the first record, and how many
    microbatches a step has from the first that is of a step.
    """
    chain: Chain | None = None
    before: list[CommitRecord] = []
    back: list[int] = []
    try:
        for record in _records(parts, manifest.run):
            if record.kind == RecordKind.BACK:
                back.append(record.step)
            if chain is not None:
                chain.append(record)
                continue
            before.append(record)
            if record.kind == RecordKind.COMMIT:
                chain = Chain(_genesis(before[0], record.count, manifest))
                for one in before:
                    chain.append(one)
    except PeerError as error:
        raise BadCheckpoint(f"{NAME} is no chain: {error}") from error
    except Unusable as error:
        raise BadCheckpoint(str(error)) from error
    if chain is None or (chain.head.digest, chain.head.version) != (manifest.head, manifest.step):
        raise BadCheckpoint(f"{NAME} does not lead to step {manifest.step}")
    _check_beginning(chain.genesis, manifest.origin)
    since = chain.genesis.version
    said = f"{chain.head.height:,} records lead from step {since} to step {manifest.step}"
    return f"{said}, {_back(back)}" if back else said


def _check_beginning(genesis: Genesis, origin: RunOrigin | None) -> None:
    """The first record names the checkpoint that the run is said to be from."""
    if origin is None:
        return
    if (genesis.version, genesis.checkpoint) != (origin.begins, origin.checkpoint):
        raise BadCheckpoint(f"{NAME} does not begin with the checkpoint that its run is from")


def _back(steps: list[int]) -> str:
    """Return how often the run has gone back, and where to."""
    if len(steps) == 1:
        return f"and went back to step {steps[0]} on the way"
    return f"and went back {len(steps):,} times on the way, the last time to step {steps[-1]}"


def _records(parts: Iterable[bytes], run: bytes) -> Iterator[CommitRecord]:
    """The records of a file, as its bytes come."""
    reader, begin = LogReader(NAME), b""
    for part in parts:
        data = part
        if len(begin) < HEADER_BYTES:
            begin += part
            if len(begin) < HEADER_BYTES:
                continue
            read_header(begin[:HEADER_BYTES], run, NAME)
            data = begin[HEADER_BYTES:]
        for entry in reader.feed(data):
            if not isinstance(entry.message, CommitRecord):
                raise BadCheckpoint(f"{NAME} has something else in it")
            yield entry.message
    reader.finish()


def _genesis(first: CommitRecord, microbatches: int, manifest: CheckpointManifest) -> Genesis:
    """Return what the first record says of the beginning; its run is the manifest's."""
    founder = (first.coordinator,)
    voters, stages = first.voters_before, len(first.stages)
    run = manifest.run_config()
    codecs, tokens = CodecChoices.of(run, stages), run.counted_tokens
    of_run = stages, microbatches, founder, voters
    genesis = Genesis(first.run, *of_run, codecs=codecs, tokens=tokens)
    return genesis.after(first.step, first.prev)


def proof_of(run: RunIdentity, source: ResumedFrom | None, *, verify_base: bool = True) -> Proof:
    """Return how the states that a run begins with are proved; `source`: its checkpoint, if it has
    one.

    `verify_base`: also of frozen weights, which takes all of the model's files.
    """
    if run.origin is None:
        return lambda stage: drawn_state(run.config, stage, verify_base=verify_base)
    return lambda stage: saved_state(run.config, stage, source)


def drawn_state(run: RunConfig, stage: int, *, verify_base: bool = True) -> Iterator[bytes]:
    """Make the digest of what a stage draws from the seed, in steps: the last value is it.

    A model of one's own may draw by other functions than those that give the same bits on every
    processor. Then all servers could agree, and this trainer's processor be the odd one.
    """
    if run.model.family != PORTABLE and run.start != PRETRAINED:
        raise Unusable(f"family {run.model.family!r} may draw otherwise on other processors")
    if run.has_base and run.start == PRETRAINED and not verify_base:
        raise Unusable("train.verify_base is off, so what most servers of the stage say stands")
    yield from first_state(run, stage)


def saved_state(run: RunConfig, stage: int, source: ResumedFrom | None) -> Iterator[bytes]:
    """Make the digest of a stage of a checkpoint, in steps: the last value that comes is it.

    The manifest names it, unless the checkpoint is of another cut, or keeps more beside the
    weights: then its bytes are read.
    """
    if source is None:
        raise Unusable("it is not known where the checkpoint lies that the run began from")
    checkpoint = open_checkpoint(open_store(source.target), source.folder)
    if checkpoint.digest != source.origin.checkpoint:
        raise Unusable(f"{checkpoint.place} is not the checkpoint that the run began from")
    blocks = stage_blocks(run, stage)
    saved = None if source.origin.fresh else stage_as_saved(checkpoint.manifest, run, blocks)
    if saved is not None:
        yield saved.state_digest
        return
    layout = layout_of(run, blocks)
    hasher = StateHasher(layout, roots_under(checkpoint, run, blocks))
    taken = taken_kinds(checkpoint.manifest.run_config(), source.origin)
    for piece in state_pieces(checkpoint, layout, taken=taken):
        hasher.update(piece)
        yield b""
    yield hasher.digest()


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
    before = manifest.cursor.optimizer_step - manifest.step
    if before < 0:
        raise Unusable(f"{checkpoint.place} counts fewer updates than steps: name another")
    origin = RunOrigin(manifest.run, manifest.step, checkpoint.digest, before=before)
    return ResumedFrom(origin, target, checkpoint.folder, manifest.spent)


def begun_from(target: str, run: RunConfig, corpus: bytes, say: Say, *, fresh: bool) -> ResumedFrom:
    """The newest checkpoint at `target` whose weights can be version 0 of a new run.

    Every byte of it is read. `fresh`: its moments are left behind. `say` is told each newer one
    that cannot be used.
    """
    wanted = Wanted(config=run, anew=True, fresh=fresh)
    checkpoint = _checkpoint(open_store(target), wanted, say)
    manifest = checkpoint.manifest
    there = manifest.run_config()
    if manifest.cursor.corpus == corpus and (there.seed, there.batch) == (run.seed, run.batch):
        say(
            "text, seed and batch are those of the former run, so the same samples come again: "
            "--set run.seed=NUMBER draws others"
        )
    before = 0 if fresh else manifest.cursor.optimizer_step
    origin = RunOrigin(manifest.run, manifest.step, checkpoint.digest, anew=True, before=before)
    return ResumedFrom(origin, target, checkpoint.folder)


def saving_plan(config: CheckpointConfig, identity: Identity, corpus: bytes) -> SavingPlan | None:
    """The plan of a run's checkpoints, if its target can be written; None without a target."""
    store = writable_store(config, identity.peer_id.short)
    if store is None:
        return None
    return SavingPlan(config=config, store=store, identity=identity, corpus=corpus)


def writable_store(config: CheckpointConfig, writer: str) -> CheckpointStore | None:
    """The store of a run's checkpoints; None without a target. Unusable if it cannot be written.

    `writer`: the short form of our peer id.
    """
    if not config.target:
        return None
    store = open_store(config.target, writer)
    require_writable(store, writer)
    return store


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
