"""Saves the state of our stage when the trainer asks, and loads the one that a run begins with."""

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable

from p2pswarm.base.errors import NotServing, SwarmError, Unusable
from p2pswarm.checkpoint.checkpoint_io import load_stage, on_thread, save_stage
from p2pswarm.checkpoint.restore import stage_as_saved, taken_kinds
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.checkpoint.writer import report_of
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.wire.message import Message
from p2pswarm.run.messages.checkpoint import LoadState, SaveState
from p2pswarm.run.state.base import Snapshot
from p2pswarm.run.state.version_reader import HeldVersion
from p2pswarm.server.member_session import ServerContext
from p2pswarm.server.replica import Replica
from p2pswarm.server.stage_checkpoint import (
    NotAllowed,
    ProgressNotes,
    StateInMemory,
    failed,
    require_allowed,
    require_version,
    source_of,
    stage_to_save,
    too_slow,
)

log = logging.getLogger(__name__)

TOLD_S = 30.0  # `LoadState` follows `Assigned`; a new trainer looks for the checkpoint first


class Checkpointing:
    """The checkpoints of one session.

    Training goes on meanwhile (`run/state/version_reader.py`). What goes wrong costs the
    checkpoint and nothing else: the trainer and the user are told in one line, and the weights
    stay as they are.
    """

    def __init__(
        self,
        context: ServerContext,
        replica: Replica,
        note: Callable[[Message], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._context = context
        self._replica = replica
        self._note = note
        self._tasks = tasks
        self._saving = False
        self._refused = False
        self._from: asyncio.Future[LoadState] = asyncio.get_running_loop().create_future()

    async def receive(self, stream: Stream) -> Message | None:
        """The trainer's next message that is not about checkpoints."""
        while True:
            match message := await stream.receive():
                case SaveState():
                    self._begin(message)
                case LoadState():
                    if not self._from.done():
                        self._from.set_result(message)
                case _:
                    return message

    async def load(self, version: int) -> None:
        """Load the state of `version` from a checkpoint, if it still counts; else ask others.

        Who lacks the frozen weights under it asks others for both.
        """
        replica = self._replica
        if replica.version is not None or replica.log.needed != version:
            return
        if replica.base is not None and not replica.base.whole:
            return
        try:
            async with asyncio.timeout(TOLD_S):
                order = await asyncio.shield(self._from)
            if order.source.begins == version:
                await replica.install(await self._load(order))
        except TimeoutError:
            log.info("no checkpoint was named: other members are asked for the weights")
        except Unusable as error:
            self._context.say(
                f"stage {replica.stage} cannot be loaded here: {error}: its trainer or another "
                "server is asked for the weights"
            )

    async def _load(self, order: LoadState) -> Snapshot:
        context, replica = self._context, self._replica
        origin, run = context.origin, context.run
        blocks = stage_blocks(run, replica.stage)
        targets = context.saving.targets
        checkpoint = await on_thread(lambda: source_of(order, origin, run, blocks, targets))
        layout = await on_thread(lambda: layout_of(run, blocks))
        base = replica.engine.weights.base_roots
        state = StateInMemory(layout, replica.engine.state_bytes, base)
        taken = taken_kinds(checkpoint.manifest.run_config(), order.source)
        async for piece in load_stage(checkpoint, layout, taken):
            state.add(piece)
        as_saved = None if order.source.fresh else stage_as_saved(checkpoint.manifest, run, blocks)
        digest, data = state.whole(as_saved)
        context.say(f"stage {replica.stage} loaded from {checkpoint.place}")
        return Snapshot(order.source.begins, digest, data)

    def _begin(self, order: SaveState) -> None:
        if self._saving:
            self._note(failed(order, "it still writes the checkpoint before"))
            return
        self._saving = True
        self._tasks.create_task(self._save(order))

    async def _save(self, order: SaveState) -> None:
        """Write our stage's file of one version, and tell the trainer."""
        context = self._context
        try:
            require_allowed(context, order)
            await self._replica.reached(order.step)
            with self._replica.reader.hold() as held:
                require_version(held, order)
                await self._write(order, held)
        except SwarmError as error:
            refused = isinstance(error, NotAllowed)
            if not (refused and self._refused):  # an owner hears once what the owner has set
                context.say(f"no checkpoint of step {order.step}: {error}")
            self._refused = refused
            self._note(failed(order, str(error), allowed=not refused))
        finally:
            self._saving = False

    async def _write(self, order: SaveState, held: HeldVersion) -> None:
        context, replica = self._context, self._replica
        peer = context.rpc.contact.peer
        assert peer is not None, "we know our own id"
        writer = peer.short
        store = await on_thread(lambda: open_store(order.target, writer))
        agreed = functools.partial(replica.digest_of, order.step)
        base = replica.engine.weights.base_roots
        what = stage_to_save(context, replica.stage, order, agreed, base)
        progress = ProgressNotes(order, replica.engine.state_bytes)
        loop = asyncio.get_running_loop()

        def told(share: float) -> None:
            if (note := progress.done(share, loop.time())) is not None:
                self._note(note)

        pieces = self._pieces(order, held)
        saved = await save_stage(store, what, pieces, writer, told=told)
        self._note(report_of(saved, order.run, order.step))

    async def _pieces(self, order: SaveState, held: HeldVersion) -> AsyncGenerator[memoryview]:
        """The state in the order of a file."""
        engine = self._replica.engine
        for tensor in range(engine.state.tensors):
            for number in range(engine.state.pieces):
                try:
                    piece = await held.read(tensor, number)
                except NotServing as error:
                    raise too_slow(order) from error
                yield piece
