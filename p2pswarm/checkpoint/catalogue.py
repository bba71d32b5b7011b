"""Finds checkpoints in a target, and opens one.

A checkpoint counts as there only when its manifest verifies and every stage that is wanted has a
file of the right size. All functions block.

Errors:  Unusable for a target without a checkpoint, or that cannot be read; BadCheckpoint;
  OtherCheckpoint.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from p2pswarm.base.errors import BadCheckpoint, OtherCheckpoint, Unusable
from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.checkpoint_manifest import (
    MANIFEST_BYTES_MAX,
    CheckpointManifest,
    SavedStage,
    read,
)
from p2pswarm.checkpoint.compatibility import Wanted, check
from p2pswarm.checkpoint.digests import PIECE_BYTES
from p2pswarm.checkpoint.names import CHAIN_NAME, MANIFEST_NAME, FolderName, parse_folder
from p2pswarm.checkpoint.stage_file import PieceReader, check_stage
from p2pswarm.checkpoint.store import CheckpointStore

ANYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose manifest verifies."""

    store: CheckpointStore
    folder: str
    """Its folder in the target; empty if the target is the checkpoint itself."""
    manifest: CheckpointManifest
    signer: PeerId
    sizes: dict[str, int | None]
    """The files that are there."""
    digest: bytes
    """The SHA-256 of its manifest's file: no other checkpoint has it."""

    def path(self, name: str) -> str:
        """A file's place in the target."""
        return f"{self.folder}/{name}" if self.folder else name

    @property
    def place(self) -> str:
        """Its name, for people."""
        return f"{self.store.place.rstrip('/')}/{self.folder}" if self.folder else self.store.place

    def copies(self, stage: SavedStage) -> list[str]:
        """The files of a stage that are there, with the right size."""
        return [name for name in stage.names if self.sizes.get(name) == stage.digest.size]

    def reader(self, stage: SavedStage) -> PieceReader:
        """A reader of the stage's bytes, from whichever copies are there."""
        paths = [self.path(name) for name in self.copies(stage)]
        return PieceReader(self.store, paths, stage.digest)


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """The newest checkpoint that is whole."""

    checkpoint: Checkpoint
    refusals: tuple[str, ...]
    """Newer ones that could not be used, each with its reason in one line."""


def folders(store: CheckpointStore) -> list[FolderName]:
    """All checkpoints of a target by their names, the newest first; some may be unfinished."""
    with reading(store.place):
        names = [name for name, size in store.entries().items() if size is None]
    return sorted((found for name in names if (found := parse_folder(name))), reverse=True)


def open_checkpoint(store: CheckpointStore, folder: str, wanted: Wanted = ANYTHING) -> Checkpoint:
    """The checkpoint in a folder of the target. Its files' bytes are not read."""
    place = f"{store.place}/{folder}" if folder else store.place
    with reading(place):
        sizes = store.entries(folder)
    size = sizes.get(MANIFEST_NAME)
    if size is None:
        raise BadCheckpoint(
            f"{place} has no {MANIFEST_NAME}: it was not finished, or half of it was deleted: use "
            "the one before"
        )
    if size > MANIFEST_BYTES_MAX:
        raise BadCheckpoint(f"{place}: a manifest of {size} bytes: use the one before")
    with reading(place):
        data = store.read(f"{folder}/{MANIFEST_NAME}" if folder else MANIFEST_NAME, 0, size)
    with _named(place):
        signed = read(data)
        check(signed, wanted)
        _require_name(folder, signed.manifest)
    digest = hashlib.sha256(data).digest()
    checkpoint = Checkpoint(store, folder, signed.manifest, signed.signer, sizes, digest)
    for stage in wanted_stages(signed.manifest, wanted):
        if not checkpoint.copies(stage):
            raise BadCheckpoint(
                f"{place}: {' and '.join(stage.names)} {'are' if stage.names[1:] else 'is'} gone "
                "or cut: use the one before"
            )
    return checkpoint


def wanted_stages(manifest: CheckpointManifest, wanted: Wanted) -> Iterator[SavedStage]:
    """The stages of a checkpoint that hold the wanted blocks."""
    blocks = wanted.blocks
    for stage in manifest.stages:
        if blocks is None or (stage.first_block < blocks.stop and blocks.start < stage.end_block):
            yield stage


def newest_good(
    store: CheckpointStore,
    wanted: Wanted,
    misfit: Callable[[CheckpointManifest], str | None] = lambda _: None,
) -> FoundCheckpoint:
    """The newest checkpoint that is wanted and whole: every byte that is needed is read once.

    `misfit` says why one is not to be used all the same.
    """
    refusals = []
    for found in folders(store):
        if wanted.run is not None and not found.is_of(wanted.run):
            continue
        try:
            checkpoint = open_checkpoint(store, found.text, wanted)
            if why := misfit(checkpoint.manifest):
                raise OtherCheckpoint(f"{checkpoint.place}: {why}")
            check_bytes(checkpoint, wanted)
        except Unusable as error:
            refusals.append(str(error))
            continue
        return FoundCheckpoint(checkpoint, tuple(refusals))
    if refusals:  # each names its remedy
        raise Unusable(
            f"there is no checkpoint to go on from in {store.place}; {len(refusals)} cannot be "
            f"used: {refusals[0]}"
        )
    raise Unusable(f"there is no checkpoint to go on from in {store.place}: name another target")


def check_bytes(checkpoint: Checkpoint, wanted: Wanted = ANYTHING) -> None:
    """Read every wanted byte; BadCheckpoint unless each is right in one copy of its file."""
    with _named(checkpoint.place):
        for stage in wanted_stages(checkpoint.manifest, wanted):
            check_stage(checkpoint.reader(stage), stage)
        check_chain(checkpoint)


def check_chain(checkpoint: Checkpoint) -> None:
    """BadCheckpoint unless the file of records has the bytes that the manifest names."""
    chain = checkpoint.manifest.chain
    if chain is None:
        return
    sha256 = hashlib.sha256()
    if checkpoint.sizes.get(CHAIN_NAME) == chain.size:
        for part in chain_parts(checkpoint):
            sha256.update(part)
        if sha256.digest() == chain.sha256:
            return
    raise BadCheckpoint(f"{CHAIN_NAME} is gone or damaged: use the checkpoint before")


def chain_parts(checkpoint: Checkpoint) -> Iterator[bytes]:
    """The bytes of the file of records; BadCheckpoint where they cannot be read."""
    assert checkpoint.manifest.chain is not None, "it has one"
    for offset in range(0, checkpoint.manifest.chain.size, PIECE_BYTES):
        try:
            yield checkpoint.store.read(checkpoint.path(CHAIN_NAME), offset, PIECE_BYTES)
        except OSError as error:
            raise BadCheckpoint(f"{CHAIN_NAME} cannot be read: {error}") from error


def _require_name(folder: str, manifest: CheckpointManifest) -> None:
    """Refuse a folder that was renamed: its name would give it another age."""
    name = manifest.id().folder
    if folder and folder != name:
        raise OtherCheckpoint(
            f"it was renamed from {name}: rename it back, or name this folder itself"
        )


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Raise Unusable when the place cannot be read at all."""
    try:
        yield
    except OSError as error:
        raise Unusable(
            f"{place} cannot be read: {error.strerror or error}: name another target, or mend it"
        ) from error


@contextlib.contextmanager
def _named(place: str) -> Iterator[None]:
    """Say of which checkpoint an error is."""
    try:
        yield
    except (BadCheckpoint, OtherCheckpoint) as error:
        raise type(error)(f"{place}: {error}") from error
