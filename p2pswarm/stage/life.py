"""What the parts of one life of a stage server share.

Errors:  none here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.config import RunConfig
from p2pswarm.ids import Contact
from p2pswarm.reduce.base import Compute
from p2pswarm.rpc.base import Rpc
from p2pswarm.stage.base import Engine
from p2pswarm.stage.desk import Desk
from p2pswarm.swarm.router import Router
from p2pswarm.swarm.view import Roster
from p2pswarm.tensors.service import Tensors
from p2pswarm.wire.codec import Message


@dataclass(frozen=True, slots=True)
class Setting:
    """What a server is given once, by whoever composes it."""

    rpc: Rpc
    tensors: Tensors
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


@dataclass(frozen=True, slots=True)
class Life:
    """One incarnation: begins with `Assigned`, ends with the exchange to the trainer."""

    setting: Setting
    engine: Engine
    desk: Desk
    roster: Roster
    router: Router
    note: Callable[[Message], None]
    """Tell the trainer, in order."""
