"""The trainers of a simulated run: each a process with a key and a chain that outlives it."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.base.ids import Contact
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.progress.events import Report
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import MEMORY_BYTES, VoterId
from p2pswarm.settings.config import RunConfig
from p2pswarm.sim.compute import numbered_corpus
from p2pswarm.sim.network_conditions import Place
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.sim.swarm_run import ChainDisk
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.coordinator_io.chain_start import ChainStart, genesis_of
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.participant import Trainer
from p2pswarm.trainer.reports.reports import RunFinished

KEY_BYTES = 16


@dataclass(slots=True)
class TrainerMachine:
    """One trainer's process, and what it runs on."""

    rpc: SimRpc
    identity: Identity
    disk: MemoryChain
    trainer: Trainer
    task: asyncio.Task[None] | None = None
    began: bool = False
    """True if it takes part by now."""
    gone: bool = False
    """True if its disk is lost, too."""

    @property
    def leads(self) -> bool:
        """True if it lives and leads, as far as it knows."""
        return self.rpc.running and self.trainer.leads

    @property
    def chain_disk(self) -> ChainDisk:
        """Its chain."""
        return ChainDisk(self.rpc.host.peer.raw, self.disk)


class SwarmTrainers:
    """All trainers of one run; a seat's newest process is the last of its list."""

    def __init__(
        self,
        run_id: bytes,
        run: RunConfig,
        world: SimWorld,
        seed: int,
        place: Callable[[int, random.Random], Place],
        heard: Callable[[TrainerMachine, Report], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`place`: of the trainer that comes n-th."""
        self.seats: list[TrainerMachine] = []
        self.first_done: asyncio.Future[RunFinished] = asyncio.get_running_loop().create_future()
        """How the run ended, as the first trainer says whose task is over."""
        self._run_id, self._run = run_id, run
        self._world = world
        self._rng = random.Random(f"trainers {seed}")
        self._place = place
        self._came = 0
        self._heard = heard
        self._tasks = tasks
        self._founder = Identity.generate(seed.to_bytes(KEY_BYTES))
        self.genesis = genesis_of(run_id, self._founder.peer_id.raw, run)

    @property
    def contacts(self) -> list[Contact]:
        """Return where the living trainers are."""
        return [machine.rpc.contact for machine in self.seats if machine.rpc.running]

    @property
    def leader(self) -> TrainerMachine | None:
        """The living trainer that leads the highest term, as far as it knows."""
        leading = [machine for machine in self.seats if machine.leads]
        return max(leading, key=lambda machine: machine.trainer.term, default=None)

    def come(self) -> None:
        """A trainer takes the next seat: the first one makes the run, the others enlist."""
        if self.seats:
            self.seats.append(self._newcomer())
        else:
            disk = MemoryChain(self.genesis.voters[0].memory)
            self.seats.append(self._machine(self._founder, disk, founds=True))

    def end(self, seat: int, *, silent: bool, same: bool) -> None:
        """End a trainer's process; unless it is to come back, its key and its disk are lost."""
        machine = self.seats[seat]
        machine.gone = not same
        machine.disk = machine.disk.copy()  # what the old process still writes, nobody reads
        assert machine.task is not None, "it was started"
        machine.task.cancel()
        self._world.kill(machine.rpc.host.peer, silent=silent)

    def begin(self, seat: int, *, same: bool) -> None:
        """Start a trainer again, or another one in its place."""
        before = self.seats[seat]
        self.seats[seat] = self._machine(before.identity, before.disk) if same else self._newcomer()

    def release(self) -> None:
        """End all processes; those that are stopped go on for that."""
        for machine in self.seats:
            if machine.task is not None:
                machine.task.cancel()
            machine.rpc.suspension.release()

    def _newcomer(self) -> TrainerMachine:
        identity = Identity.generate(self._rng.randbytes(KEY_BYTES))
        disk = MemoryChain(self._rng.randbytes(MEMORY_BYTES))
        return self._machine(identity, disk)

    def _machine(
        self, identity: Identity, disk: MemoryChain, *, founds: bool = False
    ) -> TrainerMachine:
        others = tuple(self.contacts)
        rpc = self._world.rpc(identity.peer_id, self._place(self._came, self._rng))
        self._came += 1
        restored = disk.restored(self.genesis)
        alone = restored.votes_alone(VoterId(identity.peer_id.raw, disk.memory))
        at_once = founds or alone
        chain = ChainStart(identity, self.genesis, disk, restored, leads_at_once=at_once)
        machine: TrainerMachine
        context = TrainerContext(
            rpc=rpc,
            tensors=TensorTransfer(Budget()),
            run=self._run,
            run_id=self._run_id,
            corpus=numbered_corpus(self._run),
            report=lambda report: self._heard(machine, report),
            rng=random.Random(self._rng.random()),
            chain=chain,
            trainers=others,
        )
        machine = TrainerMachine(rpc, identity, disk, Trainer(context))
        machine.task = self._tasks.create_task(
            self._train(machine), context=rpc.suspension.context.copy()
        )
        return machine

    async def _train(self, machine: TrainerMachine) -> None:
        async with machine.trainer:
            machine.began = True
            ended = await machine.trainer.run()
        if not self.first_done.done():
            self.first_done.set_result(ended)
