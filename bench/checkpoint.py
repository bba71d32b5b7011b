"""Writes a stage's state as a checkpoint while an event loop runs, reads it and verifies it.

It prints MB/s, the memory that this took above the state, how late the event loop was at most, and
how long the state's lock was held: for the copy of one piece at a time.

    python bench/checkpoint.py --mb 1000 --folder /tmp/checkpoint-bench --json result.json
"""

import argparse
import asyncio
import itertools
import json
import resource
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from p2pswarm.checkpoint.catalogue import check_bytes, open_checkpoint
from p2pswarm.checkpoint.checkpoint_io import on_thread, save_stage
from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.checkpoint.manifest import CheckpointManifest, Cursor
from p2pswarm.checkpoint.names import CheckpointId
from p2pswarm.checkpoint.restore import state_pieces
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.checkpoint.writer import StageToSave, write_manifest
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import run_to_json
from p2pswarm.tensors.flat_layout import FlatLayout, flat_layout

PIECE_BYTES = 8 << 20
TICK_S = 0.002  # how often the event loop is looked at
MB = 1_000_000
WIDTH = 1024  # of the matrices


class StateLock:
    """The lock of a replica's state, with the times that it was held."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.held_s: list[float] = []

    async def copy(self, into: memoryview, piece: memoryview) -> None:
        """Copy a piece while the lock is held, as a replica does on its compute thread."""
        async with self._lock:
            begun_s = time.perf_counter()
            await asyncio.to_thread(_copy, into, piece)
            self.held_s.append(time.perf_counter() - begun_s)


def _copy(into: memoryview, piece: memoryview) -> None:
    into[: piece.nbytes] = piece


async def source(state: memoryview, lock: StateLock) -> AsyncGenerator[memoryview]:
    """The state piece by piece, through two buffers: one is written while the other is filled."""
    buffers = itertools.cycle([memoryview(bytearray(PIECE_BYTES)) for _ in range(2)])
    for offset in range(0, state.nbytes, PIECE_BYTES):
        piece, buffer = state[offset : offset + PIECE_BYTES], next(buffers)
        await lock.copy(buffer, piece)
        yield buffer[: piece.nbytes]


async def watch(late_s: list[float]) -> None:
    """Note how late the event loop wakes us."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        late_s.append(loop.time() - due_s)


def made_state(layout: FlatLayout) -> memoryview:
    """A state without gaps, of bytes that differ from page to page."""
    state = bytearray(layout.state_bytes)
    for offset in range(0, len(state), 4096):
        state[offset : offset + 8] = offset.to_bytes(8, "little")
    return memoryview(state)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


async def measure(mb: int, folder: Path) -> dict[str, float]:
    matrices = max(1, round(mb * MB / 3 / 4 / WIDTH**2))
    layout = flat_layout(
        ("float32",) * 3, [(f"blocks.0.w{i}", (WIDTH, WIDTH)) for i in range(matrices)]
    )
    state = made_state(layout)
    hasher = StateHasher(layout)
    hasher.update(state)

    async def agreed() -> bytes:
        return hasher.digest()

    store, run = open_store(str(folder), "bbbbbbbb"), RunConfig(stages=1)
    what = StageToSave(
        id=CheckpointId(run.name, bytes(16), 1),
        stage=0,
        stages=1,
        blocks=range(1),
        layout=layout,
        agreed=agreed,
    )
    lock, late_s, before_mb = StateLock(), [0.0], peak_mb()
    watching = asyncio.create_task(watch(late_s))
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    saved = await save_stage(store, what, source(state, lock), "bbbbbbbb")
    saved_s, saved_cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    watching.cancel()
    above_mb = peak_mb() - before_mb
    cursor = Cursor(
        optimizer_step=1, next_microbatch=8, next_learning_rate=0.1, seed=1, corpus=bytes(32)
    )
    manifest = CheckpointManifest(
        run=bytes(16),
        config=run_to_json(run),
        step=1,
        head=b"",
        chain=None,
        cursor=cursor,
        stages=(saved,),
    )
    await on_thread(lambda: write_manifest(store, manifest, Identity.generate(b"bench"), None))
    checkpoint = open_checkpoint(store, what.id.folder)
    begun_s = time.perf_counter()
    check_bytes(checkpoint)
    verified_s = time.perf_counter() - begun_s
    begun_s, offset = time.perf_counter(), 0
    for piece in state_pieces(checkpoint, layout):
        assert state[offset : offset + len(piece)] == piece, "the same bytes come back"
        offset += len(piece)
    loaded_s = time.perf_counter() - begun_s
    size_mb = state.nbytes / MB
    return {
        "state_mb": round(size_mb, 1),
        "saved_mb_per_s": round(size_mb / saved_s, 1),
        "saved_mb_per_cpu_s": round(size_mb / saved_cpu_s, 1),
        "verified_mb_per_s": round(size_mb / verified_s, 1),
        "loaded_mb_per_s": round(size_mb / loaded_s, 1),
        "peak_above_state_mb": round(above_mb, 1),
        "loop_late_ms_max": round(max(late_s) * 1e3, 2),
        "lock_held_ms_max": round(max(lock.held_s) * 1e3, 2),
        "lock_held_share": round(sum(lock.held_s) / saved_s, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint-bench"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.folder.exists():
        sys.exit(f"error: {options.folder} is there already: name a folder that is not")
    try:
        figures = asyncio.run(measure(options.mb, options.folder))
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name:22} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
