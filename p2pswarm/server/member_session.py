"""The context of a stage server, and what the parts of one incarnation of it share."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.base.ids import Contact
from p2pswarm.base.signal import Signal
from p2pswarm.models.compute.base import Engine
from p2pswarm.models.compute.bundle_spec import StageCodecs
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.net.wire.message import Message
from p2pswarm.plan.capacity import CapacityMeter
from p2pswarm.run.averaging.base import Compute
from p2pswarm.run.chain.chain_log import VoterRecords
from p2pswarm.run.member_cards import NO_CARDS, MemberCards
from p2pswarm.run.member_view import MemberView
from p2pswarm.run.messages.field_limits import PathCounts
from p2pswarm.run.messages.membership import Load, MemberFacts
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.run.router import Router
from p2pswarm.run.state.base import BackgroundThread, at_once
from p2pswarm.run.state.base_files import BaseFolder
from p2pswarm.run.state.partial_state import PartialFolder
from p2pswarm.run.state.version_reader import WINDOW_BYTES
from p2pswarm.server.boundary_cache import KEPT_BYTES
from p2pswarm.server.scheduler import Scheduler
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.transfer import TensorTransfer

log = logging.getLogger(__name__)


def unheard(_stage: int, _load: Load) -> None:
    """Nobody else hears how busy a server is."""


@dataclass(frozen=True, slots=True)
class SavingLimits:
    """The limits of this machine for the run's checkpoints."""

    allowed: bool = True
    """It writes checkpoints at all."""
    targets: tuple[str, ...] = ()
    """The folders and URLs that its owner lets trainers name; none: it opens nothing."""
    window_bytes: int = WINDOW_BYTES
    """Memory for what a checkpoint still lacks when a commit changes the weights."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What a server is given once, by the code that composes it."""

    rpc: Rpc
    tensors: TensorTransfer
    run: RunConfig
    run_id: bytes
    trainer: Contact
    """The trainer that is asked first, where the run was found."""
    compute: Compute
    """The one thread that changes weights and gradients."""
    make_engine: Callable[[int], Engine]
    """Memory and blocks for a stage."""
    make_router: Callable[[], Router]
    rejoin_s: float = 60.0
    """How long to look quickly for a trainer that was lost; after that, less often."""
    stage: int | None = None
    """The one stage to serve; None: the one that needs a server most."""
    planned_stage: int | None = None
    """The stage to begin with, if there is no `stage`: the run may choose another later."""
    standbys: tuple[Contact, ...] = ()
    """Other trainers of the run, to be asked if the first does not coordinate it."""
    say: Callable[[str], None] = log.info
    """Tells the user what a person should know."""
    aside: BackgroundThread = at_once
    """A thread that reads weights for others beside `compute`; a simulation needs none."""
    background: Compute | None = None
    """Computes digests beside `compute`; None: they take turns with it."""
    secret: bytes = b""
    """Random bytes that nobody else knows; a simulation may do without."""
    origin: RunOrigin | None = None
    """The checkpoint that the run began from; None for one that began anew."""
    saving: SavingLimits = SavingLimits()
    kept_bytes: int = KEPT_BYTES
    """Memory for what was given to the stages beside this one, until the step is decided."""
    partials: PartialFolder | None = None
    """The folder of pieces of weights that are on their way; None: only in memory."""
    bases: BaseFolder | None = None
    """The folder of frozen weights that came from members; None: only in memory."""
    cards: MemberCards = NO_CARDS
    """The known addresses of peers."""
    free_bytes: Callable[[], int | None] = lambda: None
    """Memory of the device that is free; None where that is not known."""
    voter: VoterRecords | None = None
    """None: this server does not vote."""
    on_load: Callable[[int, Load], None] = unheard
    """Takes the stage, and what the trainer is told of the work there."""
    facts: MemberFacts | None = None
    """What the trainer's user is told of this machine; None: nothing."""

    @property
    def me(self) -> bytes:
        """Our own peer id."""
        peer = self.rpc.contact.peer
        assert peer is not None, "we know our own id"
        return peer.raw


@dataclass(frozen=True, slots=True)
class MemberSession:
    """One incarnation: begins with `Assigned`, ends with the stream to the trainer."""

    context: ServerContext
    trainer: Contact
    """The coordinator that numbered this incarnation; nobody else may give orders."""
    engine: Engine
    scheduler: Scheduler
    members: MemberView
    router: Router
    note: Callable[[Message], None]
    """Tell the trainer, in order."""
    view_changed: Signal
    """Fired when the router may know other servers than before."""
    meter: CapacityMeter
    """Measures what this server can do."""
    codecs: StageCodecs
    """The codecs of its boundaries, step by step."""

    @property
    def members_about(self) -> int:
        """A guess at the run's members: it knows those of its own stage, and neighbours."""
        return self.context.run.stages * len(self.members.ready(self.scheduler.stage))

    def links(self) -> PathCounts:
        """The paths of its links to the trainer and to the members that it knows."""
        peers = self.members.peers
        if self.trainer.peer is not None:
            peers.append(self.trainer.peer.raw)
        return self.context.cards.links(peers)

    def route_anew(self) -> None:
        """Let the router know the servers of the next stage, and wake pushes that wait for one."""
        self.router.update(self.members.ready(self.scheduler.stage + 1))
        self.view_changed.fire()
