"""Proves that a checkpoint is whole: every byte of every copy, against what its trainer signed.

Errors:  Unusable where there is no checkpoint, or several runs have some and the place keeps no
         times.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from p2pswarm.base.errors import BadCheckpoint, OtherCheckpoint, Unusable
from p2pswarm.checkpoint.catalogue import (
    Checkpoint,
    chain_parts,
    check_chain,
    folders,
    open_checkpoint,
    reading,
)
from p2pswarm.checkpoint.checkpoint_manifest import CheckpointManifest, SavedStage
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.names import MANIFEST_NAME, FolderName, is_ours
from p2pswarm.checkpoint.stage_file import PieceReader, check_stage
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.targets import open_store


@dataclass(frozen=True, slots=True)
class Verification:
    """The facts of a checkpoint that scripts read."""

    ok: bool
    """A run can go on from it."""
    steps: int
    head: str
    """The hash of the chain's newest record, in hexadecimal; empty if it is not known."""


NOTHING = Verification(ok=False, steps=0, head="")
NO_BLOCKS = Wanted(blocks=range(0))
"""Opens a checkpoint though files are gone: each stage is then named."""

Say = Callable[[str], None]
CheckRecords = Callable[[Iterable[bytes], CheckpointManifest], str]
"""Takes the bytes of the file of records; says what it proves, or raises BadCheckpoint."""


def verify(target: str, say: Say, check_records: CheckRecords) -> Verification:
    """Read the checkpoint at `target`, or the newest one in it; `say` is told each fact."""
    store = open_store(target)
    try:
        checkpoint = open_checkpoint(store, _folder(store, say), NO_BLOCKS)
        run = checkpoint.manifest.run_config()
    except (BadCheckpoint, OtherCheckpoint) as error:
        say(str(error))
        return NOTHING
    manifest = checkpoint.manifest
    say(
        f"{checkpoint.place}: run {run.name!r}, step {manifest.step}, written by release "
        f"{manifest.program}, signed by {checkpoint.signer}"
    )
    if manifest.origin is not None:
        say(f"the run: {manifest.origin.text}, of which the first record names the checkpoint")
    whole = [_check_stage(checkpoint, stage, say) for stage in manifest.stages]
    ok = all([*whole, _check_chain(checkpoint, say, check_records)])
    say(f"step {manifest.step} is whole" if ok else "it is not whole: use the one before")
    return Verification(ok, manifest.step, manifest.head.hex())


def _folder(store: CheckpointStore, say: Say) -> str:
    """The checkpoint that is meant: the target itself, or the newest in it that is finished."""
    with reading(store.place):
        entries = store.entries()
    if MANIFEST_NAME in entries or any(is_ours(name) for name in entries):
        return ""
    runs: dict[str, list[FolderName]] = {}
    for found in folders(store):
        runs.setdefault(found.of_run, []).append(found)
    newest = {run: name for run, names in runs.items() if (name := _finished(store, names))}
    chosen = newest_run(store, newest) if len(newest) > 1 else next(iter(newest), None)
    for run, names in runs.items():
        for one in names if chosen in (run, None) else []:
            if one == newest.get(run):
                break
            say(f"{one.text} is not finished: it has no {MANIFEST_NAME}")
    if chosen is None:
        raise Unusable(f"there is no checkpoint in {store.place}: name the folder of one")
    if len(runs) > 1:
        say(
            f"{store.place} has checkpoints of {len(runs)} runs; this is the newest of {chosen}, "
            "which was written last: name a folder for another"
        )
    return newest[chosen].text


def _finished(store: CheckpointStore, names: Iterable[FolderName]) -> FolderName | None:
    """The first that has its manifest, which is written last."""
    with reading(store.place):
        return next((name for name in names if MANIFEST_NAME in store.entries(name.text)), None)


def newest_run(store: CheckpointStore, newest: Mapping[str, FolderName]) -> str:
    """The run whose newest checkpoint was written last: steps of two runs tell no time."""
    with reading(store.place):
        times_s = {
            run: store.written_s(f"{name.text}/{MANIFEST_NAME}") for run, name in newest.items()
        }
    known = {run: time_s for run, time_s in times_s.items() if time_s is not None}
    if len(known) < len(newest):
        raise Unusable(
            f"{store.place} has checkpoints of {len(newest)} runs, and does not say which was "
            f"written last: name one, such as {next(iter(newest.values())).text}"
        )
    return max(known, key=lambda run: (known[run], run))


def _check_stage(checkpoint: Checkpoint, stage: SavedStage, say: Say) -> bool:
    """Return whether a copy of the stage is whole; every copy is read."""
    blocks = f"blocks {stage.first_block}..{stage.end_block - 1}"
    line = f"stage {stage.stage} of {stage.stages}, {blocks}, {stage.digest.size:,} bytes: "
    good, faults = 0, []
    for name in stage.names:
        if name not in checkpoint.sizes:
            faults.append(f"{name} is not here")
        elif name not in checkpoint.copies(stage):
            faults.append(f"{name} has {checkpoint.sizes[name]} bytes: it is cut")
        else:
            try:
                reader = PieceReader(checkpoint.store, [checkpoint.path(name)], stage.digest)
                check_stage(reader, stage)
                good += 1
            except BadCheckpoint as error:
                faults.append(str(error))
    state = f"whole in {good} of {len(stage.names)} files" if good else "damaged"
    say(line + "; ".join([state, *faults]))
    return good > 0


def _check_chain(checkpoint: Checkpoint, say: Say, check_records: CheckRecords) -> bool:
    """Whether the records are there as they were written, and are the chain that led here."""
    chain = checkpoint.manifest.chain
    if chain is None:
        say("chain: none here, so what came before this step is not known")
        return True
    try:
        check_chain(checkpoint)
        found = check_records(chain_parts(checkpoint), checkpoint.manifest)
    except BadCheckpoint as error:
        say(f"chain: {error}")
        return False
    say(f"chain: {found}, each signed, and each names the one before")
    return True
