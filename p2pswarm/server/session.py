"""What the parts of one incarnation of a stage server share.

Errors:  none here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.allreduce.base import Compute
from p2pswarm.compute.base import Engine
from p2pswarm.config import RunConfig
from p2pswarm.flow.signal import Signal
from p2pswarm.ids import Contact
from p2pswarm.rpc.base import Rpc
from p2pswarm.server.scheduler import Scheduler
from p2pswarm.state.pieces import PIECE_BYTES
from p2pswarm.swarm.router import Router
from p2pswarm.swarm.view import MemberView
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.wire.message import Message


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What a server is given once, by the code that composes it."""

    rpc: Rpc
    tensors: TensorTransfer
    run: RunConfig
    run_id: bytes
    trainer: Contact
    compute: Compute
    """The one thread that touches weights and gradients."""
    make_engine: Callable[[int], Engine]
    """Memory and blocks for a stage."""
    make_router: Callable[[], Router]
    rejoin_s: float = 60.0
    """How long to look for a trainer that was lost."""
    piece_bytes: int = PIECE_BYTES
    """Bytes of a snapshot that are requested at a time."""
    stage: int | None = None
    """The one stage to serve; None: whichever needs a server most."""
    secret: bytes = b""
    """Random bytes that nobody else knows; a simulation may do without."""


@dataclass(frozen=True, slots=True)
class MemberSession:
    """One incarnation: begins with `Assigned`, ends with the stream to the trainer."""

    context: ServerContext
    engine: Engine
    scheduler: Scheduler
    members: MemberView
    router: Router
    note: Callable[[Message], None]
    """Tell the trainer, in order."""
    view_changed: Signal
    """Fired when the router may know other servers than before."""
