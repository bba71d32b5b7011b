"""The download of a stage's weights from its members, piece by piece, and the copy of it on disk.

Source:  docs/state.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from p2pswarm.base.errors import NotSaved
from p2pswarm.base.ids import Contact
from p2pswarm.models.compute.base import Engine, part_sizes
from p2pswarm.run.averaging.base import Compute
from p2pswarm.run.member_view import MemberView
from p2pswarm.run.messages.state import FetchBase, FetchPieces, FetchSaved
from p2pswarm.run.state.frozen_state import NO_VERSION, FrozenState
from p2pswarm.run.state.partial_state import PartialFile
from p2pswarm.run.state.piece_download_io import Download
from p2pswarm.server.member_session import ServerContext
from p2pswarm.server.replica import Loading, Replica

GB = 1e9


def make_replica(context: ServerContext, stage: int, engine: Engine) -> Replica:
    """A stage's weights on this machine; none are here yet."""
    threads = context.compute, context.aside, context.background
    return Replica(stage, engine, *threads, context.saving.window_bytes, context.origin)


async def fetch_weights(
    context: ServerContext,
    replica: Replica,
    members: MemberView,
    begins: Callable[[Loading], Awaitable[None]] | None = None,
) -> None:
    """Fetch until the weights are whole; `begins` is told of each download before it begins."""
    me, opening = context.rpc.contact.peer, FetchPieces(context.run_id, replica.stage)
    while replica.version is None and (loading := replica.loading) is not None:
        if begins is not None:
            await begins(loading)
        download = Download(context.rpc, opening, loading)
        donors = partial(members.donors, replica.stage, me)
        await download.run(donors, loading.is_enough)
        if (frozen := replica.base) is not None and not frozen.whole:
            assert loading.rules.base, "the state is proved, and names what is frozen"
            (leaf,) = loading.rules.base
            await fetch_base(context, frozen, replica.stage, leaf, donors)
        await replica.loaded()


async def fetch_saved(
    context: ServerContext, replica: Replica, trainer: Contact, members: MemberView
) -> None:
    """Fetch what the run begins with from its coordinator, until it is whole or a member has it."""
    loading, me = replica.loading, context.rpc.contact.peer
    if replica.version is not None or loading is None:
        return
    opening = FetchSaved(context.run_id, replica.stage)

    def enough() -> bool:
        return loading.is_enough() or bool(members.donors(replica.stage, me))

    await Download(context.rpc, opening, loading).run(lambda: (trainer,), enough)


async def fetch_base(
    context: ServerContext,
    base: FrozenState,
    stage: int,
    leaf: bytes,
    donors: Callable[[], Sequence[Contact]],
) -> None:
    """Fetch the frozen weights of a stage until they are whole; `leaf`: what the stage agrees on.

    Begins with what is here, of a session before or on the disk.
    """
    base.rules.rejoined(NO_VERSION)
    base.rules.agreed(NO_VERSION, leaf)
    if context.bases is not None and (found := await base.look_up(context.bases)):
        context.say(
            f"stage {stage}: {found} of {base.pieces} pieces of its frozen weights taken from the "
            "folder `state`"
        )
    if not base.rules.complete:
        context.say(
            f"stage {stage}: its frozen weights, {base.size_bytes / GB:.1f} GB, come from members: "
            "serve.pretrained names no files of the run's model"
        )
    download = Download(context.rpc, FetchBase(context.run_id, stage), base)
    await download.run(donors, lambda: base.rules.complete)
    await base.use(context.compute, leaf)


async def keep_base(context: ServerContext, base: FrozenState) -> None:
    """Keep on disk what comes of frozen weights, as long as a session lasts."""
    folder = context.bases
    if folder is None or folder.refused:
        return
    try:
        await base.keep(folder, context.background or context.compute)
    except NotSaved as error:
        folder.refused = True
        context.say(
            f"{error}: the frozen weights are kept in memory alone; free some space, or name "
            "another folder as `state`"
        )


class PieceKeeping:
    """The pieces on disk during one session.

    The copy lets a restarted process go on. It is a help and no part of the protocol: what cannot
    be written is told in one line, and the download goes on in memory. The file is removed when
    the weights are whole.
    """

    def __init__(self, context: ServerContext, replica: Replica, tasks: asyncio.TaskGroup) -> None:
        """`tasks`: of the session; pieces are written in it."""
        self._context = context
        self._replica = replica
        self._tasks = tasks
        self._thread: Compute = context.background or context.compute
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self, loading: Loading) -> None:
        """Put the pieces of a former process in their place, and keep those that come."""
        file = self._file()
        if file is None or self._keeping is not None:
            return
        if await self._done(file.begin):
            await self._restore(file, loading)
            self._keeping = self._tasks.create_task(self._keep(file, loading))

    def end(self) -> None:
        """The weights are whole: the file is of no use any more."""
        if self._keeping is not None:
            self._keeping.cancel()
        if (file := self._file()) is not None:
            self._tasks.create_task(self._done(file.remove))

    def _file(self) -> PartialFile | None:
        folder, state = self._context.partials, self._replica.engine.state
        if folder is None or folder.refused:
            return None
        sizes = [sum(part_sizes(state, piece)) for piece in range(state.pieces)]
        return folder.file(self._context.run_id, self._replica.stage, sizes)

    async def _restore(self, file: PartialFile, loading: Loading) -> None:
        version, restored = loading.rules.version, 0
        for piece in file.map.usable(version):
            if (kept := await self._thread(partial(file.read, piece))) is not None:
                restored += await loading.restored(piece, version, *kept)
        if remark := file.map.remark(restored, version):
            self._context.say(f"stage {self._replica.stage}: {remark}")

    async def _keep(self, file: PartialFile, loading: Loading) -> None:
        """Write piece after piece, until the session ends or the weights are whole."""
        while True:
            piece = file.map.due(loading.rules.worth_keeping)
            if piece is None:
                await loading.moved.wait()
            elif (copy := await loading.copy(piece)) is not None and not await self._done(
                partial(file.write, piece, *copy)
            ):
                await self._done(file.remove)
                return

    async def _done(self, work: Callable[[], None]) -> bool:
        """Return whether the disk did it; if not, the user is told once, and it rests."""
        folder = self._context.partials
        assert folder is not None, "there is a file"
        try:
            await self._thread(work)
        except NotSaved as error:
            if not folder.refused:
                self._context.say(
                    f"{error}: the weights that come are kept in memory alone; free some space, or "
                    "name another folder as `state`"
                )
            folder.refused = True
            return False
        return True
