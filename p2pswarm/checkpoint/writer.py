"""Writes one stage's file from pieces of its state, and the manifest of all files.

All functions block; `checkpoint_io.py` runs them on a thread.

Errors:  NotSaved, one line, for whatever the target refuses, and for files that make no whole
  checkpoint; ValueError for a state that does not fit its layout.
"""

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, NotSaved
from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.checkpoint_manifest import (
    CheckpointManifest,
    RecordsFile,
    SavedStage,
    sign,
)
from p2pswarm.checkpoint.digests import (
    DIGEST_BYTES,
    PIECE_BYTES,
    FileDigest,
    FileHasher,
    StateHasher,
    piece_bytes_for,
)
from p2pswarm.checkpoint.names import CHAIN_NAME, MANIFEST_NAME, CheckpointId, stage_file_name
from p2pswarm.checkpoint.stage_file import (
    BASE_KEY,
    StageFileDecoder,
    StageFileEncoder,
    file_bytes,
    header_of,
)
from p2pswarm.checkpoint.store import CheckpointStore, StoreFile
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.messages.checkpoint import Saved
from p2pswarm.tensors.flat_layout import FlatLayout

log = logging.getLogger(__name__)
SPARE_BYTES = 1 << 20  # of a disk: for the folder, the manifest, and what others write meanwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class StageToSave:
    """A stage's state that is to be written."""

    id: CheckpointId
    stage: int
    stages: int
    blocks: range
    layout: FlatLayout
    agreed: Callable[[], Awaitable[bytes]] | None = None
    """Gives the digest of weights and moments, as the servers of the stage agree on it; computing
    it takes longer than writing, and goes on beside that. None: nobody has to agree."""
    base: tuple[bytes, ...] = ()
    """The roots of the frozen weights of its blocks, which are no part of the file."""

    def about(self) -> dict[str, str]:
        """The file's metadata: the same at every server, so that the files are."""
        return {
            "format": "p2pswarm-stage-1",
            "run": self.id.run.hex(),
            "step": str(self.id.step),
            "stage": f"{self.stage} of {self.stages}",
            "blocks": f"{self.blocks.start}..{self.blocks.stop - 1}",
            **({BASE_KEY: b"".join(self.base).hex()} if self.base else {}),
        }


class StageFileWriter:
    """Writes a stage's file; nothing has its name before `finish`.

    Hashing takes several times as long as writing. So where a target gives back what was written,
    it is hashed afterwards, from there: nobody has to hold the state still any more by then.
    """

    def __init__(
        self,
        store: CheckpointStore,
        what: StageToSave,
        writer: str,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """`writer` is the short form of our peer id; `piece_bytes`: of the file's digests."""
        self._store = store
        self._what = what
        self._name = stage_file_name(what.stage, what.stages, writer)
        self._header = header_of(what.layout, what.about())
        self._size = file_bytes(what.layout, len(self._header))
        self._hasher = FileHasher(piece_bytes_for(self._size, piece_bytes))
        self._encoder = StageFileEncoder(what.layout)
        self._state_hasher = StateHasher(what.layout, what.base)
        self._place = f"{store.place}/{what.id.folder}/{self._name}"
        self._file: StoreFile | None = None
        self._decoder = StageFileDecoder(what.layout)
        self._written = self._hashed = 0
        self._hash_later = False

    @property
    def done(self) -> float:
        """Return how far it is: the share of what is to be written and hashed."""
        return (self._written + self._hashed) / (2 * self._size)

    def begin(self) -> None:
        """Make the file, if there is room for it."""
        store, folder = self._store, self._what.id.folder
        with saving(self._place):
            _require_unfinished(store, folder)
            _require_space(store, self._size)
            _remove_leftover(store, folder, self._name)
            self._file = store.create(f"{folder}/{self._name}", self._size)
            self._hash_later = self._file.reread(0, 0) is not None
        self._add(self._header)

    def write(self, piece: memoryview) -> None:
        """Take the next bytes of the state, gaps included."""
        for part in self._encoder.encode(piece):
            self._add(part)
        if not self._hash_later:
            self._state_hasher.update(piece)

    def hash_next(self) -> bool:
        """Hash the next bytes of what was written; False when all are hashed."""
        if self._hashed == self._written:
            return False
        assert self._file is not None, "it was begun"
        with saving(self._place):
            data = self._file.reread(self._hashed, min(PIECE_BYTES, self._written - self._hashed))
        if not data:
            raise NotSaved(f"{self._place} was cut off by somebody while it was written")
        self._hasher.update(data)
        inside = max(0, len(self._header) - self._hashed)
        for part in self._decoder.decode(memoryview(data)[inside:]):
            self._state_hasher.update(part)
        self._hashed += len(data)
        return True

    def finish(self, state_digest: bytes) -> SavedStage:
        """Give the file its name, if it holds the state that was agreed on.

        `state_digest`: of weights and moments, as the servers of the stage agreed on it. Returns
        what the manifest says of the file.
        """
        self._encoder.finish()
        while self.hash_next():
            pass
        if self._state_hasher.digest() != state_digest:
            raise NotSaved(
                f"{self._place} was not written: the state changed meanwhile, or it is not the one "
                "that the stage agreed on; the next checkpoint will be written"
            )
        assert self._file is not None, "it was begun"
        with saving(self._place):
            self._file.commit()
        what = self._what
        return SavedStage(
            what.stage,
            what.stages,
            what.blocks.start,
            what.blocks.stop,
            state_digest,
            (self._name,),
            self._hasher.finish(),
        )

    def abandon(self) -> None:
        """Remove what was written; a place that has failed once may refuse this too."""
        if self._file is None:
            return
        try:
            self._file.abandon()
        except OSError as error:
            log.warning("%s: a part of it is left: %s", self._place, error)

    def _add(self, data: memoryview | bytes) -> None:
        assert self._file is not None, "it was begun"
        with saving(self._place):
            self._file.write(data)
        nbytes = memoryview(data).nbytes
        self._written += nbytes
        if not self._hash_later:
            self._hasher.update(data)
            self._hashed += nbytes


def write_manifest(
    store: CheckpointStore, manifest: CheckpointManifest, identity: Identity, chain: bytes | None
) -> None:
    """Write the records, and last the manifest: from then on the checkpoint is there."""
    if manifest.chain != (None if chain is None else chain_file(chain)):
        raise ValueError("the records are not those that the manifest names")
    folder = manifest.id().folder
    data = sign(manifest, identity)
    with saving(f"{store.place}/{folder}"):
        _require_unfinished(store, folder)
        _require_space(store, len(data) + len(chain or b""))
        if chain is not None:
            _remove_leftover(store, folder, CHAIN_NAME)
            _write_whole(store, f"{folder}/{CHAIN_NAME}", chain)
        _write_whole(store, f"{folder}/{MANIFEST_NAME}", data)


def chain_file(chain: bytes) -> RecordsFile:
    """Return what the manifest says of the run's records."""
    return RecordsFile(len(chain), hashlib.sha256(chain).digest())


def _write_whole(store: CheckpointStore, path: str, data: bytes) -> None:
    file = store.create(path, len(data))
    whole = False
    try:
        file.write(data)
        file.commit()
        whole = True
    finally:
        if not whole:
            file.abandon()


def _remove_leftover(store: CheckpointStore, folder: str, name: str) -> None:
    """Remove a file of an earlier try, which was not finished by a manifest."""
    if name in store.entries(folder):
        store.remove(folder, [name])


def _require_unfinished(store: CheckpointStore, folder: str) -> None:
    if MANIFEST_NAME in store.entries(folder):
        raise NotSaved(f"{store.place}/{folder} is finished already, and is not written again")


def _require_space(store: CheckpointStore, size: int) -> None:
    free = store.free_bytes()
    if free is not None and free < size + SPARE_BYTES:
        raise NotSaved(
            f"{store.place} has {free:,} bytes free, and {size + SPARE_BYTES:,} are needed: free "
            "some space, or keep fewer checkpoints"
        )


@contextlib.contextmanager
def saving(place: str) -> Iterator[None]:
    """Raise NotSaved when the target refuses."""
    try:
        yield
    except OSError as error:
        raise NotSaved(
            f"{place} was not written: {error.strerror or error}; training goes on without this "
            "checkpoint: free some space, or name another target"
        ) from error


def joined(reports: Iterable[SavedStage], cut: Sequence[range]) -> tuple[SavedStage, ...]:
    """The stages of a checkpoint from the reports of all servers that wrote; `cut`: their blocks.

    NotSaved names a stage that nobody has written, or that two have written differently.
    """
    stages: dict[int, SavedStage] = {}
    for report in reports:
        known = stages.get(report.stage)
        if known is None:
            stages[report.stage] = report
            continue
        names = tuple(dict.fromkeys(known.names + report.names))
        both = dataclasses.replace(known, names=names)
        if both != dataclasses.replace(report, names=names):
            raise NotSaved(
                f"two servers of stage {report.stage} wrote different files ({', '.join(names)}): "
                "this checkpoint is not finished; the next one will be"
            )
        stages[report.stage] = both
    for stage, blocks in enumerate(cut):
        saved = stages.get(stage)
        if saved is None:
            raise NotSaved(f"no server has written stage {stage}: this checkpoint is not finished")
        found = saved.stages, saved.first_block, saved.end_block
        if found != (len(cut), blocks.start, blocks.stop):
            raise NotSaved(f"stage {stage} was written for another cut of the model")
    return tuple(stages[stage] for stage in range(len(cut)))


def report_of(saved: SavedStage, run: bytes, step: int) -> Saved:
    """Return what a server says to the trainer when its file is whole."""
    digest = saved.digest
    return Saved(
        run,
        step,
        saved.stage,
        saved.first_block,
        saved.end_block,
        saved.state_digest,
        digest.size,
        digest.sha256,
        digest.piece_bytes,
        b"".join(digest.pieces),
    )


def saved_by(report: Saved, peer: PeerId, stages: int) -> SavedStage:
    """Return what a report of `peer` means; BadMessage if it is wrong.

    The peer's name is in the file's, so it can name no other file.
    """
    raw = report.pieces
    pieces = tuple(raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES))
    try:
        return SavedStage(
            report.stage,
            stages,
            report.first_block,
            report.end_block,
            report.state_digest,
            (stage_file_name(report.stage, stages, peer.short),),
            FileDigest(report.size, report.sha256, report.piece_bytes, pieces),
        )
    except ValueError as error:
        raise BadMessage(f"a stage that was saved: {error}") from error
