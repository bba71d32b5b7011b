"""A run of up to thousands of members that keep its directory; they compute nothing.

Each member's code is its own, over simulated calls. They share what reads records, because a
signature is checked in a tenth of a millisecond, and a thousand members check each one.

Units:   virtual seconds.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from worlds.dht import EPOCH_S

from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.gossip.directory_io import Directories, DirectoryContext, RunDirectory
from p2pswarm.discovery.gossip.messages import RUN_ID_BYTES, RunRole
from p2pswarm.discovery.gossip.record import Activity, FigureKey, RecordReader, RoleKind, figures
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.rpc import SimRpc, SimWorld

STAGES = 8
RECORDS_READ = 1 << 16  # of all members, kept for as long as they are passed on
RUN = bytes(RUN_ID_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class GossipWorldConfig:
    """The number of members, and their network."""

    members: int = 100
    seed: int = 1
    world: WorldConfig = field(default_factory=WorldConfig)


@dataclass(slots=True)
class SimMember:
    """One member of the run."""

    identity: Identity
    rpc: SimRpc
    clock_off_s: float = 0.0
    """What its wall clock is ahead of the others'."""
    directory: RunDirectory | None = None
    """Its directory, while it is in the run."""
    task: asyncio.Task[None] | None = None

    @property
    def sees(self) -> frozenset[bytes]:
        """The ids of all whom it sees in the run."""
        present = self.directory.present() if self.directory is not None else ()
        return frozenset(record.peer.raw for record in present)


class GossipWorld:
    """Members of one run. Make it inside a running loop."""

    def __init__(self, config: GossipWorldConfig, tasks: asyncio.TaskGroup) -> None:
        self.net = SimWorld(config.seed, config.world)
        self.members: list[SimMember] = []
        self._rng = random.Random(config.seed)
        self._reader = RecordReader(RECORDS_READ)
        self._tasks = tasks
        for _ in range(config.members):
            self.place()

    def place(self, *, clock_off_s: float = 0.0, address: Address | None = None) -> SimMember:
        """A machine that is not in the run yet."""
        identity = Identity.generate(self._rng.randbytes(32))
        rpc = self.net.rpc(identity.peer_id, address=address)
        self.members.append(SimMember(identity, rpc, clock_off_s))
        return self.members[-1]

    def place_again(self, before: SimMember, *, clock_off_s: float = 0.0) -> SimMember:
        """A machine that was here, with the same key, as after a restart."""
        rpc = self.net.rpc(before.identity.peer_id)
        self.members.append(SimMember(before.identity, rpc, clock_off_s))
        return self.members[-1]

    def join(self, member: SimMember, through: Sequence[Contact]) -> None:
        """Let a machine take part from now on; `through`: the entry points that it knows."""
        context = member.rpc.suspension.context.copy()
        member.task = self._tasks.create_task(self._live(member, through), context=context)

    def kill(self, member: SimMember) -> None:
        """End a member as a power cut does."""
        assert member.task is not None, "it is in the run"
        self.net.kill(member.rpc.host.peer)
        member.task.cancel()
        self.members.remove(member)

    def close(self) -> None:
        """End all members."""
        for member in self.members:
            if member.task is not None:
                member.task.cancel()

    def partition(self, *halves: Iterable[SimMember]) -> None:
        """Cut the members apart."""
        self.net.world.partition(*[[m.rpc.host.peer for m in half] for half in halves])

    @property
    def one(self) -> bool:
        """Whether each member sees all members and nobody else."""
        everybody = {member.rpc.host.peer.raw for member in self.members}
        return all(member.sees == everybody for member in self.members)

    async def until_one(self, patience_s: float, step_s: float = 0.5) -> float:
        """Wait until there is one directory; the seconds that it took."""
        now = asyncio.get_running_loop().time
        begun_s = now()
        async with asyncio.timeout(patience_s):
            while not self.one:  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(step_s)
        return now() - begun_s

    async def _live(self, member: SimMember, through: Sequence[Contact]) -> None:
        card = Card.make(member.identity, 1, [member.rpc.contact.address])
        around = DirectoryContext(
            member.rpc,
            member.identity,
            lambda: card,
            random.Random(self._rng.random()),
            lambda: EPOCH_S + member.clock_off_s + asyncio.get_running_loop().time(),
            reader=self._reader,
        )
        stage = self.members.index(member) % STAGES
        load = {FigureKey.VERSION: 0.0, FigureKey.QUEUE_S: 0.01, FigureKey.RATE_PER_S: 3.5}
        async with Directories(around) as directories, directories.open(RUN) as directory:
            member.directory = directory
            directory.enter_through(through)
            directory.set_role(RunRole(RoleKind.SERVER, Activity.WORKING, stage, figures(load)))
            await asyncio.get_running_loop().create_future()
