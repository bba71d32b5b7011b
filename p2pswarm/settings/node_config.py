"""The settings of one machine, which stay there: what it gives, where it keeps things, its links.

`settings/parser.py` reads them from TOML, with the run's (`settings/config.py`).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.limits import (
    HUB_CHARS_MAX,
    PRICE_PER_HOUR_MAX,
    Between,
    Currency,
    OneOf,
    Text,
)
from p2pswarm.settings.page_config import PageConfig
from p2pswarm.settings.service_hours import HoursText, LeaveWhen
from p2pswarm.settings.train_config import TrainConfig

ROLES = ("auto", "bootstrap", "stage", "trainer")
NAME_CHARS_MAX = 64  # of a machine: a label of a host name has 63 at most
TARGET_CHARS_MAX = 1_000  # a checkpoint's target travels in a message
ROWS, TENSOR, CONTEXT = "rows", "tensor", "context"
"""What several devices share: `serve.parallel`."""
LOG_LEVELS = ("debug", "info", "warning", "error")
KEY_FILE = "identity.key"  # in the folder of `state`
TARGETS_MAX = 16  # that one machine lets trainers name: more is a mistake
RELAY_MB_S = 64.0  # half of a 1 Gbit/s line
STATE_SHARE = 0.1
"""Of the upload, for newcomers: training keeps 90 %, and a newcomer is never starved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """When the trainer has the run's state saved, where, and which checkpoints stay."""

    target: str = ""
    """A folder or a URL of fsspec that all servers reach; empty: no checkpoints."""
    every_steps: Annotated[int, Between(1, 10**9)] = 100
    keep_newest: Annotated[int, Between(1, 10_000)] = 3
    """How many of the newest stay: more than one, so that a damaged one loses little."""
    keep_every: Annotated[int, Between(0, 10**9)] = 0
    """Those whose step is a multiple of this stay for good; 0: none."""

    def __post_init__(self) -> None:
        if len(self.target) > TARGET_CHARS_MAX or not self.target.isprintable():
            raise ValueError(f"target is a path or URL of at most {TARGET_CHARS_MAX} characters")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """What a stage server gives to a run."""

    run: str = ""
    """The name of the run to join; empty: the first that is found."""
    stage: Annotated[int, Between(0, 255)] | None = None
    """Serve only this stage; left out: the stage that needs a server most."""
    planned_stage: Annotated[int, Between(0, 255)] | None = None
    """Begin with this stage, as `p2pswarm plan` found, and move where the run finds better."""
    device: str = "auto"
    """A torch device such as cpu or cuda:0; auto: the GPU where there is one; several, as in
    cuda:0,cuda:1 or cuda:all: one server on all of them; emulated: none, in an emulated run."""
    parallel: Annotated[str, OneOf(ROWS, TENSOR, CONTEXT)] = ROWS
    """Several devices each compute some rows, or with a part of each tensor, or the tokens of some
    documents and parts of long ones (docs/devices.md)."""
    emulated_forward_s: Annotated[float, Between(0.0, 3_600.0)] = 0.1
    """Emulated: what a forward of a microbatch takes; a backward takes twice as long."""
    threads: Annotated[int, Between(0, 1_024)] = 0
    """The number of torch's threads; 0: torch chooses."""
    compiled: bool = False
    """Run the blocks by torch.compile: faster, after minutes at the start (docs/precision.md)."""
    pretrained: Path | None = None
    """The folder with a model's safetensors files, for runs that start from them; or "hf:NAME":
    download this stage's part of that model of the hub (docs/models.md)."""
    hub: Annotated[str, Text(HUB_CHARS_MAX, least=0)] = ""
    """The name that `pretrained = "hf:NAME"` gives; filled in."""
    packages: tuple[str, ...] = ()
    """Packages whose models this node may import, if a run is of them (docs/models.md)."""
    graph_mib: Annotated[int, Between(0, 2**20)] = 0
    """Memory that forwards keep for their backwards, on each device; past it, a forward is done
    again. 0: half of what a GPU has free beside the weights, 1 GiB of a host."""
    recompute: Annotated[str, OneOf("auto", "stage", "block")] = "auto"
    """How a forward is done again: block, one block at a time in the memory of one block's graph;
    stage, all blocks at once; auto: whichever fits, on one device (docs/precision.md)."""
    kept_mib: Annotated[int, Between(0, 2**20)] = 1_024
    """Memory of the host, not of the device, for activations and gradients that were given to other
    stages in this step; past it they are computed again when such a stage loses a server."""
    grace_s: Annotated[float, Between(0.0, 3_600.0)] = 20.0
    """The most seconds that leaving may take after SIGTERM, the notice that a machine ends."""
    log: Path | None = None
    """A file that gets a line of JSON for each event, for p2pswarm watch; empty: none."""
    leave: Annotated[str, LeaveWhen()] = "run"
    """When this server ends by itself: run, when a run that it has served is over; "idle:600",
    after so many seconds without a run; "run, idle:600", at the first of both; never, it waits for
    the next (docs/start_and_stop.md)."""
    hours: Annotated[str, HoursText()] = ""
    """When this server serves, by this machine's clock, as "20:00-08:00"; it leaves runs in order
    for the rest of the day, and comes back by itself; empty: all day."""
    checkpoints: bool = True
    """Write checkpoints, if a trainer names a target that is allowed; false: never."""
    checkpoint_targets: tuple[str, ...] = ()
    """Folders and URLs that a run's trainer may name for checkpoints, and places in them; empty:
    this node opens nothing that a run names (docs/checkpoints.md)."""
    checkpoint_mib: Annotated[int, Between(1, 2**20)] = 96
    """Memory for what a checkpoint still lacks when the next step changes the weights."""
    price_per_hour: Annotated[float, Between(0.0, PRICE_PER_HOUR_MAX)] = 0.0
    """What this machine costs, which the run's trainer is told; 0: it is one's own (cost.md)."""
    currency: Annotated[str, Currency()] = "USD"
    """Of that price; one of another currency than the trainer's is not counted."""
    spot: bool = False
    """This machine may be taken away at any time; the trainer is told."""

    def __post_init__(self) -> None:
        if len(self.checkpoint_targets) > TARGETS_MAX or not all(self.checkpoint_targets):
            raise ValueError(
                f"checkpoint_targets has at most {TARGETS_MAX} folders or URLs, and no empty one"
            )
        several = "," in self.device or self.device == "cuda:all"
        if self.parallel != ROWS and not several:
            raise ValueError(
                f"parallel {self.parallel} is for several devices; device is {self.device}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """How other nodes reach this one, and how many tensor bytes it accepts at once."""

    announce: str = ""
    """HOST:PORT that others dial; empty: the address it listens on, or this host's own."""
    map_ports: bool = True
    """Ask the router to forward the listening port (PCP, NAT-PMP, UPnP), if there is one."""
    bulk_connections: Annotated[int, Between(1, 16)] = 1
    """TCP connections for tensors to each peer, at the least; more are opened where they help."""
    state_share: Annotated[float, Between(0.0, 1.0)] = STATE_SHARE
    """Of what is sent while training sends too: weights for newcomers; 1: all that they can."""
    peer_mib: Annotated[int, Between(1, 2**20)] = 1_024
    """The most tensor bytes on their way from one peer, in MiB."""
    total_mib: Annotated[int, Between(1, 2**20)] = 4_096
    """The most tensor bytes on their way from all peers together, in MiB."""
    relays: tuple[str, ...] = ()
    """HOST:PORT of nodes through which others reach this one, where they cannot dial it."""
    relay: bool = True
    """Pass on bytes between peers that cannot dial each other; not with `relays`."""
    relay_mb_s: Annotated[float, Between(0.1, 1e6)] = RELAY_MB_S
    """The most that is passed on, in MB a second; a pair of peers has a limit of 20 besides."""
    relay_port: Annotated[int, Between(0, 65_535)] = 0
    """A second port to listen on, such as 443, which most firewalls let pass; 0: none."""
    relay_web: Annotated[int, Between(0, 65_535)] = 0
    """A port for WebSocket, for hosts that have only the web; 0: none."""
    relay_certificate: Path | None = None
    """One PEM file, chain and key, for `relay_web`; left out: a proxy in front has them."""

    def __post_init__(self) -> None:
        if self.relay_certificate and not self.relay_web:
            raise ValueError("relay_certificate is for relay_web: set its port, or leave it out")
        if self.peer_mib > self.total_mib:
            raise ValueError(f"peer_mib {self.peer_mib} is more than total_mib {self.total_mib}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    """The settings of one machine. A command-line flag overrides the file."""

    role: Annotated[str, OneOf(*ROLES)] = "auto"
    """auto: `stage` with a bootstrap address, else `bootstrap`."""
    listen: str = ""
    """HOST:PORT; empty: every address of this host, and port 4000 or any free one."""
    bootstrap: tuple[str, ...] = ()
    """HOST:PORT of nodes that are already in the swarm."""
    identity: Path | None = None
    """The key file, made if absent; left out: in `state`, or a new identity each time."""
    state: Path | None = None
    """A folder where a trainer or a server keeps what it must know after a restart; one a node."""
    invite: str = ""
    """The invitation of a run's owner: its text, or a file that has it."""
    name: Annotated[str, Text(NAME_CHARS_MAX, least=0)] = ""
    """What people call this machine; empty: the name of the host."""
    region: Annotated[str, Text(NAME_CHARS_MAX, least=0)] = ""
    """Where it is, for people; empty: nobody says."""
    log_level: Annotated[str, OneOf(*LOG_LEVELS)] = "warning"
    leave_at_eof: bool = False
    """Leave when stdin ends: then a program that starts nodes cannot leave them behind."""
    run: RunConfig = field(default_factory=RunConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    page: PageConfig = field(default_factory=PageConfig)

    @property
    def key_file(self) -> Path | None:
        """Return where the node's key is kept; None if it has a new one each time."""
        if self.identity is None and self.state is not None:
            return self.state / KEY_FILE
        return self.identity

    def __post_init__(self) -> None:
        if self.run.on_stage_lost == "rewind" and not self.checkpoint.target:
            raise ValueError(
                'run.on_stage_lost = "rewind" needs checkpoints to go back to: set '
                "checkpoint.target, a folder or URL that all servers reach"
            )
