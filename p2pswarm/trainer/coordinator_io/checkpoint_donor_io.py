"""The coordinator as a donor: it gives members the states of the checkpoint that a run begins with.

A member opens no target that its owner does not allow (docs/checkpoints.md). So the coordinator
reads the checkpoint that the run goes on from, and gives its pieces, until a member has them.

Errors:  NotServing for a state that is not to be had here.
"""

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import IO

from p2pswarm.base.errors import NotServing, Unusable
from p2pswarm.checkpoint.catalogue import Checkpoint, open_checkpoint
from p2pswarm.checkpoint.checkpoint_io import load_stage, on_thread
from p2pswarm.checkpoint.restore import base_roots, taken_kinds
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.models.base_weights.base_layout import base_roots as drawn_roots
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.net.rpc.base import Stream
from p2pswarm.run.messages.checkpoint import LoadState
from p2pswarm.run.state.donor import Donor
from p2pswarm.run.state.host_state import StateSize
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.flat_layout import FlatLayout
from p2pswarm.tensors.state_tree import base_leaves, piece_hash


def roots_under(checkpoint: Checkpoint, run: RunConfig, blocks: range) -> tuple[bytes, ...]:
    """The roots of the frozen weights under a checkpoint's state, which may not name them itself.

    Then the files of the base are read; Unusable where they are not here.
    """
    found = base_roots(checkpoint, blocks)
    return found if found or not run.has_base else tuple(drawn_roots(run, blocks))


class CheckpointState:
    """Implements `DonatedState`: the state of one stage, in a file without a name."""

    def __init__(
        self, file: IO[bytes], size: StateSize, version: int, base: Sequence[bytes] = ()
    ) -> None:
        """`base`: the roots of the frozen weights under it."""
        self._base = base
        self._file = file
        self._size = size
        self._version = version
        self._hashes: tuple[bytes, ...] | None = None

    @property
    def pieces(self) -> int:
        """Return how many there are."""
        return len(self._size.spans)

    async def reached(self, version: int) -> None:
        """It never gets on: NotServing for a later version."""
        if version > self._version:
            raise NotServing(f"the checkpoint is of version {self._version}")

    async def piece(self, piece: int) -> tuple[int, memoryview]:
        """Read a piece; its version, and its bytes."""
        return self._version, memoryview(await on_thread(lambda: b"".join(self._parts(piece))))

    async def hashes(self, version: int) -> tuple[bytes, ...] | None:
        """The hash of each piece; None of another version."""
        if version != self._version:
            return None
        if self._hashes is None:
            self._hashes = await on_thread(self._hashed)
        return self._hashes

    def close(self) -> None:
        """Free the disk."""
        self._file.close()

    def _hashed(self) -> tuple[bytes, ...]:
        hashes = (
            piece_hash(memoryview(part) for part in self._parts(piece))
            for piece in range(self.pieces)
        )
        return (*hashes, *base_leaves(self._base))

    def _parts(self, piece: int) -> Iterator[bytes]:
        """The piece's part of each tensor, in order. Blocks."""
        start, stop = self._size.spans[piece]
        at = 0
        for item in self._size.item_bytes:
            self._file.seek(at + start * item)
            yield self._file.read((stop - start) * item)
            at += self._size.values * item


class CheckpointDonor:
    """The stages of the checkpoint that a run goes on from, each read when it is asked for."""

    def __init__(self, run: RunConfig) -> None:
        self._run = run
        self._states: dict[int, tuple[CheckpointState, Donor]] = {}
        self._reading = asyncio.Lock()
        self._closed = False

    async def serve(self, stream: Stream, stage: int, order: LoadState) -> None:
        """Give the pieces of a stage of the checkpoint that `order` names."""
        async with self._reading:
            if self._closed:
                raise NotServing("the run has gone on")
            if stage not in self._states:
                state = await self._read(stage, order)
                self._states[stage] = state, Donor(state)
        _, donor = self._states[stage]
        await donor.serve(stream)

    def close(self) -> None:
        """Members have the states, or another trainer leads."""
        self._closed = True
        for state, _ in self._states.values():
            state.close()

    async def _read(self, stage: int, order: LoadState) -> CheckpointState:
        run = self._run
        blocks = stage_blocks(run, stage)
        layout = await on_thread(lambda: layout_of(run, blocks))
        try:
            checkpoint = await on_thread(
                lambda: open_checkpoint(open_store(order.target), order.folder)
            )
            base = await on_thread(lambda: roots_under(checkpoint, run, blocks))
            taken = taken_kinds(checkpoint.manifest.run_config(), order.source)
            file = await _copied(checkpoint, layout, taken)
        except (OSError, Unusable) as error:
            raise NotServing(f"the checkpoint cannot be read: {error}") from error
        if checkpoint.digest != order.source.checkpoint:
            file.close()
            raise NotServing(f"{checkpoint.place} is not the checkpoint of the run any more")
        return CheckpointState(file, StateSize.of(layout), order.source.begins, base)


async def _copied(checkpoint: Checkpoint, layout: FlatLayout, taken: Collection[str]) -> IO[bytes]:
    """The state of a stage in a file that is gone when it is closed; OSError of the disk."""
    with contextlib.ExitStack() as closing:
        file: IO[bytes] = closing.enter_context(tempfile.TemporaryFile())
        async for piece in load_stage(checkpoint, layout, taken):
            await on_thread(functools.partial(file.write, piece))
        closing.pop_all()
    return file
