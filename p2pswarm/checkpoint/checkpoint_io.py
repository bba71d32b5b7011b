"""Writes and reads checkpoints in threads, so that the event loop goes on.

Every call of a target runs on a thread of its own. State comes and goes piece by piece: one is
written here while the next is made.

Errors:  NotSaved; those of `catalogue.py` and `restore.py` when reading.
"""

import asyncio
import contextlib
import functools
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from p2pswarm.checkpoint.catalogue import Checkpoint
from p2pswarm.checkpoint.checkpoint_manifest import SavedStage
from p2pswarm.checkpoint.digests import PIECE_BYTES
from p2pswarm.checkpoint.restore import state_pieces
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.writer import StageFileWriter, StageToSave
from p2pswarm.settings.config import STATE_KINDS
from p2pswarm.tensors.flat_layout import FlatLayout

NICER = 10  # a tenth of a processor that everything else wants, and all of one that nobody does


def yield_processor() -> None:
    """Let all other threads go before this one, for the rest of its life; the main one does not."""
    if threading.current_thread() is threading.main_thread():
        return  # it would never come back from that; in virtual time all work is done here
    if sys.platform == "linux":  # elsewhere the number of a thread means something else
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICER)


T = TypeVar("T")


async def on_thread(work: Callable[[], T]) -> T:
    """Run a function of `catalogue.py`, `retention.py` or `writer.py`.

    A target may hang, as a disk of another machine does. A caller that is cancelled does not wait.
    """
    with _FileThread() as thread:
        return await thread(work)


async def save_stage(
    store: CheckpointStore,
    what: StageToSave,
    source: AsyncGenerator[memoryview],
    writer: str,
    piece_bytes: int = PIECE_BYTES,
    told: Callable[[float], None] = lambda _share: None,
) -> SavedStage:
    """Write a stage's file; `source` gives its state in order, gaps included, in any pieces.

    A piece has to stay as it is until the one after the next is asked for: it is written while the
    next is made. The source is closed at the end, also after an error. `writer` is the short form
    of our peer id; `told` hears which share is done. If this fails, what was written is removed; if
    it is cancelled, by a thread that nobody waits for.
    """
    file = StageFileWriter(store, what, writer, piece_bytes)
    assert what.agreed is not None, "servers agree on what they save"
    agreed = asyncio.ensure_future(what.agreed())
    agreed.add_done_callback(_retrieve)
    with _FileThread() as thread:
        try:
            await thread(file.begin)
            async with contextlib.aclosing(source):
                await _write_all(thread, file, source, told)
            await thread(yield_processor)  # training needs the state no more, but the processor
            while await thread(file.hash_next):
                told(file.done)
            return await thread(functools.partial(file.finish, await agreed))
        except asyncio.CancelledError:
            thread.afterwards(file.abandon)
            raise
        except Exception:
            await thread(file.abandon)
            raise
        finally:
            agreed.cancel()


async def load_stage(
    checkpoint: Checkpoint, layout: FlatLayout, taken: Collection[str] = STATE_KINDS
) -> AsyncIterator[memoryview]:
    """The state of the stage that `layout` describes, in order, gaps included; see `restore`."""
    pieces = state_pieces(checkpoint, layout, taken=taken)
    with _FileThread() as thread:
        while (piece := await thread(lambda: next(pieces, None))) is not None:
            yield piece


async def last_of(steps: Callable[[], Iterator[T]]) -> T:
    """The last value of an iterator, which runs on a thread that lets all others go first.

    A caller that is cancelled waits for no step, and no further one is begun.
    """
    with _FileThread() as thread:
        await thread(yield_processor)
        iterator = steps()
        last = await thread(lambda: next(iterator))
        while (value := await thread(lambda: next(iterator, None))) is not None:
            last = value
        return last


async def _write_all(
    thread: "_FileThread",
    file: StageFileWriter,
    source: AsyncGenerator[memoryview],
    told: Callable[[float], None],
) -> None:
    """Write piece after piece, each while the next is made."""
    writing: asyncio.Future[None] | None = None
    async for piece in source:
        if writing is not None:
            await writing
            told(file.done)
        writing = asyncio.ensure_future(thread(functools.partial(file.write, piece)))
        writing.add_done_callback(_retrieve)
    if writing is not None:
        await writing
        told(file.done)


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Take note of an error, even if something else has failed before it."""
    if not done.cancelled():
        done.exception()


class _FileThread:
    """One thread: what is submitted happens in order, also after its caller is gone."""

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False)

    async def __call__(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def afterwards(self, work: Callable[[], None]) -> None:
        """Have `work` done after all that was begun; nobody waits for it."""
        asyncio.get_running_loop().run_in_executor(self._pool, work)
