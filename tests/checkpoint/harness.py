"""Runs, layouts and checkpoints of a few bytes, and disks that fail when they are told to."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator
from random import Random

from p2pswarm.checkpoint.catalogue import Checkpoint, open_checkpoint
from p2pswarm.checkpoint.checkpoint_io import save_stage
from p2pswarm.checkpoint.checkpoint_manifest import CheckpointManifest, Cursor, SavedStage
from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.checkpoint.names import CheckpointId
from p2pswarm.checkpoint.restore import state_pieces
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.targets import LocalFolder
from p2pswarm.checkpoint.writer import StageToSave, chain_file, joined, write_manifest
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.settings.parser import run_id, run_to_json
from p2pswarm.tensors.flat_layout import FlatLayout, flat_layout

RUN = RunConfig(
    name="my run",
    stages=2,
    model=ModelConfig(d_model=4, layers=2, heads=2, sequence_length=8),
    optimizer=OptimizerConfig(decay_steps=100),
)
RUN_ID = run_id(run_to_json(RUN))
TRAINER = Identity.generate(b"trainer")
WRITER = "aaaaaaaa"
OTHER_WRITER = "bbbbbbbb"
CORPUS = b"c" * 32
HEAD = b"h" * 32
SHAPES = [[(5,), (3, 7)], [(16,)], [(2, 2, 2), (), (9,)], [(33,)]]
"""The parameters of each block: some fill a line of 16, most leave a gap."""
FILE_PIECE_BYTES = 150  # so that files have several pieces, and tensors lie across them
CUT = (range(2), range(2, 4))
FLOAT32 = ("float32",) * 3
DTYPES = (FLOAT32, ("float64",) * 4, ("bfloat16", "float32", "float32"), ("bfloat16", *FLOAT32))
"""Of the tensors of a state."""


def layout(blocks: range, dtypes=FLOAT32, shapes=SHAPES) -> FlatLayout:
    return flat_layout(
        dtypes,
        [(f"blocks.{n}.p{i}", shape) for n in blocks for i, shape in enumerate(shapes[n])],
    )


def state_of(of: FlatLayout, seed: int = 0) -> bytes:
    """Random state: each parameter's bytes depend on its name alone, not on the cut; gaps are 0."""
    out, base = bytearray(of.state_bytes), 0
    for kind, item in zip(of.kinds, of.item_bytes, strict=True):
        for t in of.tensors:
            data = Random(f"{seed}:{kind}{t.name}").randbytes((t.stop - t.start) * item)
            begin = base + t.start * item
            out[begin : begin + len(data)] = data
        base += of.length * item
    return bytes(out)


async def in_pieces(state: bytes, piece_bytes: int = 100) -> AsyncGenerator[memoryview]:
    for offset in range(0, len(state), piece_bytes):
        yield memoryview(state)[offset : offset + piece_bytes]


def checkpoint_id(step: int = 7, head: bytes = HEAD, run: bytes = RUN_ID) -> CheckpointId:
    return CheckpointId(RUN.name, run, step, head)


def digest_of(state: bytes, layout: FlatLayout) -> bytes:
    hasher = StateHasher(layout)
    hasher.update(state)
    return hasher.digest()


def to_save(stage: int, cut=CUT, identity=None, dtypes=FLOAT32, shapes=SHAPES) -> StageToSave:
    """A stage whose state will be `state_of(layout, seed=step)`."""
    identity, there = identity or checkpoint_id(), layout(cut[stage], dtypes, shapes)
    return StageToSave(
        id=identity,
        stage=stage,
        stages=len(cut),
        blocks=cut[stage],
        layout=there,
        agreed=agreed_on(state_of(there, seed=identity.step), there),
    )


def agreed_on(state: bytes, layout: FlatLayout):
    """What gives the digest of a state, as the servers of a stage would agree on it."""

    async def agreed() -> bytes:
        return digest_of(state, layout)

    return agreed


def manifest_of(stages, identity=None, *, run=RUN, chain: bytes | None = b"records"):
    identity = identity or checkpoint_id()
    return CheckpointManifest(
        run=identity.run,
        config=run_to_json(run),
        step=identity.step,
        head=identity.head,
        chain=None if chain is None else chain_file(chain),
        cursor=Cursor(
            optimizer_step=identity.step,
            next_microbatch=identity.step * run.batch.microbatches,
            next_learning_rate=learning_rate(run, identity.step),
            seed=run.seed,
            corpus=CORPUS,
        ),
        stages=tuple(stages),
    )


async def save_stages(
    store: CheckpointStore, identity=None, cut=CUT, writers=(WRITER,), **options
) -> list[SavedStage]:
    reports = []
    for stage in range(len(cut)):
        what = to_save(stage, cut, identity, **options)
        state = state_of(what.layout, seed=what.id.step)
        reports += [
            await save_stage(store, what, in_pieces(state), w, FILE_PIECE_BYTES) for w in writers
        ]
    return reports


async def save(
    store: CheckpointStore, step: int = 7, cut=CUT, writers=(WRITER,), **options
) -> Checkpoint:
    """A whole checkpoint; the state of its stages is `state_of(..., seed=step)`."""
    identity = options.pop("identity", None) or checkpoint_id(step)
    chain = options.pop("chain", b"records")
    run = options.pop("run", RUN)
    reports = await save_stages(store, identity, cut, writers, **options)
    manifest = manifest_of(joined(reports, cut), identity, run=run, chain=chain)
    await asyncio.to_thread(write_manifest, store, manifest, TRAINER, chain)
    return open_checkpoint(store, identity.folder)


def loaded(checkpoint: Checkpoint, blocks: range) -> bytes:
    return b"".join(state_pieces(checkpoint, layout(blocks), 64))


class FailingFile:
    """A file on a disk that is full after `room_bytes`, or fails when it is asked to sync."""

    def __init__(self, path, room_bytes: int, *, at_flush: bool = False) -> None:
        self._file = path.open("wb", buffering=0)
        self._room = room_bytes
        self._at_flush = at_flush

    def write(self, data) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self._file.write(memoryview(data)[: self._room])
        self._room -= count
        return count

    def flush(self) -> None:
        if self._at_flush:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


def full_after(folder, room_bytes: int) -> LocalFolder:
    """A folder on a disk with so much room for each file."""
    return LocalFolder(folder, WRITER, lambda path: FailingFile(path, room_bytes))


def names_in(folder) -> list[str]:
    """Every file below a folder."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
