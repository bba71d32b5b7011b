"""The configuration and the result of a simulated run, as values that a test can compare."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from p2pswarm.progress.events import Report
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import VoterId
from p2pswarm.server.boundary_cache import KEPT_BYTES
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.faults import FaultPlan
from p2pswarm.sim.network_conditions import Place, WorldConfig
from p2pswarm.trainer.reports.reports import MemberLost, Replayed, RunFinished, StepDone


@dataclass(frozen=True, slots=True)
class ChainDisk:
    """One machine's chain, as it is now or will be when the machine is back."""

    peer: bytes
    chain: MemoryChain

    @property
    def voter(self) -> VoterId:
        """The voter that it is."""
        return VoterId(self.peer, self.chain.memory)


def may_lose_disk(disks: Sequence[ChainDisk], victim: ChainDisk, genesis: Genesis) -> bool:
    """Return whether the others can elect a leader and decide without the disk of one machine.

    They need a majority of all voters that the newest records name, decided or only accepted, and
    a trainer that may lead.
    """
    left = [disk for disk in disks if disk.peer != victim.peer]
    read = [disk.chain.restored(genesis) for disk in disks]
    head = max((one.learner.chain.head for one in read), key=lambda head: head.height)
    accepted = [one.register.accepted for one in read]
    beyond = [record for record in accepted if record and record.height >= head.height - 1]
    electorates = [head.voters, *(record.voters for record in beyond)]
    trainers = [head.trainers, *(record.trainers for record in beyond)]
    peers = {disk.peer for disk in left}
    voters = {disk.voter for disk in left}
    led = all(peers & set(named) for named in trainers)
    return led and all(
        2 * sum(voter in voters for voter in named) > len(named) for named in electorates
    )


def small_run(**changes: object) -> RunConfig:
    """A run whose activations are a few KiB, for tests."""
    defaults: dict[str, object] = {
        "stages": 3,
        "steps": 5,
        "min_replicas": 2,
        "model": ModelConfig(d_model=64, layers=4, heads=4, sequence_length=32),
        "batch": BatchConfig(microbatches=16, rows=2, evaluate_every=0),
        "codecs": CodecConfig(),
    }
    return RunConfig(**(defaults | changes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmConfig:
    """A run and the machines that it has."""

    seed: int = 1
    run: RunConfig = field(default_factory=small_run)
    servers: int = 6
    trainers: int = 1
    """The first founds the run; the others stand by. All have the same text."""
    speeds: tuple[float, ...] = (1.0,)
    """The speeds of the servers, in turn."""
    regions: tuple[tuple[float, float], ...] = ((0.5, 0.5),)
    """Points of the unit square around which servers are, in turn; the trainers are, too."""
    devices: tuple[SimDevice, ...] = ()
    """The servers' machines, in turn; they stand before `speeds`, and before `regions`."""
    trainer_place: Place | None = None
    """Where the trainers are; None: as `regions` puts them."""
    latecomers_s: tuple[float, ...] = ()
    """When further servers join: each so many seconds after the one before."""
    cost: Cost = field(default_factory=Cost)
    world: WorldConfig = field(default_factory=lambda: WorldConfig(bandwidth_bytes_per_s=25e6))
    """The network; by default 25 MB/s for each host, a good link of a home."""
    death_every_s: float = 0.0
    """Mean time between two deaths of servers; 0: none dies. Another server comes for each.

    A server that holds the last weights of its stage does not die, because that would end the run.
    """
    rebirth_s: float = 5.0
    """Time from a death until the next server joins."""
    faults: FaultPlan = field(default_factory=FaultPlan)
    """The faults besides, and their times. A death that would end the run is left out."""
    wrong: Mapping[int, float] = field(default_factory=dict)
    """The servers whose processors are wrong now and then, by the order in which they come, and how
    often; whoever computes with such a result makes a wrong one too."""
    kept_bytes: int = KEPT_BYTES
    """The part of a step that each server keeps for stages that lose a sum."""
    free_bytes: int | None = None
    """The memory that each server has beside its stage, as it says; None: it does not know."""
    patience_s: float = 36_000.0
    """The time limit of a run."""


@dataclass(frozen=True, slots=True)
class SwarmResult:
    """The result of a run."""

    ended: RunFinished
    steps: int
    seconds: float
    """From the start of the first step to the end of the run."""
    microbatches_per_s: float
    replayed: int
    lost: int
    """Incarnations that ended before the run did."""
    busy_share: float
    """The share of their time that servers computed."""
    trainer_bytes: int
    """The bytes that the trainer sent."""
    moved_bytes: int
    """The bytes that all hosts sent."""
    digest: str


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """One machine of a run: when it ran, how long it computed, what it holds."""

    born_s: float
    died_s: float | None
    busy_s: float
    stage: int | None
    version: int | None
    """The version of the weights that it holds; None if it has none."""
    newest: int | None = None
    """The version that it holds or could make, if a commit came."""
    member: bool = False
    """True if the trainer that leads gives it work."""

    @property
    def holds_weights(self) -> bool:
        """True if it is alive and could give its weights to a newcomer."""
        return self.died_s is None and self.version is not None

    def there_s(self, begin_s: float, end_s: float) -> float:
        """Return the time that it ran between two times."""
        return max(0.0, (end_s if self.died_s is None else self.died_s) - max(self.born_s, begin_s))


def may_lose_memory(machines: Sequence[MachineRecord], victim: int) -> bool:
    """Return whether the others of its stage hold weights as new as those of one machine.

    A machine that has reduced a step may be the only one that can make the next version, which is
    decided soon. Another member has reduced it, too, or it is not decided without that one.
    """
    record = machines[victim]
    return not record.holds_weights or any(
        other.holds_weights and other.stage == record.stage
        for place, other in enumerate(machines)
        if place != victim
        and (other.version or 0) >= (record.version or 0)
        and (other.member or (other.newest or 0) >= (record.newest or 0))
    )


def may_die(machines: Sequence[MachineRecord]) -> list[int]:
    """The positions of machines that do not hold the last weights of their stage."""
    return [
        number
        for number, machine in enumerate(machines)
        if machine.died_s is None
        and any(
            other.holds_weights and other.stage == machine.stage
            for place, other in enumerate(machines)
            if place != number
        )
    ]


def result_of(
    *,
    ended: RunFinished,
    reports: Sequence[Report],
    machines: Sequence[MachineRecord],
    begun_s: float,
    ended_s: float,
    trainer_bytes: int,
    moved_bytes: int,
    world_digest: str,
) -> SwarmResult:
    """Sum up everything that was recorded of a run."""
    steps = [report for report in reports if isinstance(report, StepDone)]
    seconds = ended_s - begun_s
    there_s = sum(machine.there_s(begun_s, ended_s) for machine in machines)
    story = "\n".join(map(repr, reports)) + world_digest
    return SwarmResult(
        ended=ended,
        steps=len(steps),
        seconds=seconds,
        microbatches_per_s=sum(step.microbatches for step in steps) / seconds,
        replayed=sum(len(r.microbatches) for r in reports if isinstance(r, Replayed)),
        lost=sum(isinstance(report, MemberLost) for report in reports),
        busy_share=sum(machine.busy_s for machine in machines) / there_s,
        trainer_bytes=trainer_bytes,
        moved_bytes=moved_bytes,
        digest=hashlib.sha256(story.encode()).hexdigest(),
    )
