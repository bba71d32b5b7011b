"""Getting the weights of a stage from its members, piece by piece.

Errors:  those of the memory; a donor that fails is one that is asked no more for a while.
Source:  docs/state.md.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from p2pswarm.models.compute.base import Engine
from p2pswarm.run.messages.state import FetchPieces
from p2pswarm.run.state.download import Download
from p2pswarm.run.view import MemberView
from p2pswarm.server.loading import Loading
from p2pswarm.server.replica import Replica
from p2pswarm.server.session import ServerContext


def make_replica(context: ServerContext, stage: int, engine: Engine) -> Replica:
    """A stage's weights on this machine; none are here yet."""
    threads = context.compute, context.aside, context.background
    return Replica(stage, engine, *threads, context.saving.window_bytes)


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
        await download.run(lambda: members.donors(replica.stage, me), partial(_enough, loading))
        await replica.loaded()


def _enough(loading: Loading) -> bool:
    return loading.enough
