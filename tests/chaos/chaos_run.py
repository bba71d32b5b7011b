"""One run with the faults of one seed, watched from outside."""

import asyncio
import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from p2pswarm.base.ids import PeerId
from p2pswarm.progress.events import Report
from p2pswarm.run.chain import chain as record_chain
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import CommitRecord, term_of
from p2pswarm.run.member_view import Incarnation
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.link import WORLD
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimRpc
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import MemberLost, RunBegun, StepDone, SumKept

from .aimed_draw import AimedOptions, draw_aimed
from .aimed_run import AimedInjection
from .aims import Chain
from .fault_draw import DEADLY, DRAWN, GUESTS, FaultOptions, draw_plan
from .invariants import Contributions, Digests, Records, Stalls
from .possible import Living, step_is_possible

STEPS, STAGES, MICROBATCHES = 25, 3, 8
AIMED_STEPS = 6
CALM_STEPS = 8  # one round of every server's work; the first are no slower than the later ones
STUCK_S = 60.0  # from the last fault on, the next step is done within this
LOOK_S = 0.5  # between two looks at whether a step is possible
RAW = CodecConfig(activation="raw", gradient="raw")
THREE_REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    what: str | None
    """The breach; None if every invariant held."""
    longest_stall_s: float
    happened: tuple[str, ...]
    """The faults, in words."""
    digest: str
    """Of the whole run; the same for the same seed."""
    calm_step_s: float = 0.0
    """The longest step of a run of the same shape without faults."""

    @property
    def stall_less_step_s(self) -> float:
        """What the faults cost the longest step beyond the work that a step is."""
        return max(0.0, self.longest_stall_s - self.calm_step_s)


class Breach(AssertionError):
    """An invariant did not hold."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What differs from seed to seed besides the faults."""

    servers: int
    every_s: float
    """Mean time between two faults."""
    cost: Cost
    steps: int = STEPS
    trainers: int = 1
    tied: bool = False
    """Whether the first and the last stage have a tensor in common."""
    delay: int = 0

    @classmethod
    def aimed(cls, seed: int) -> "Shape":
        """Of a run with an aimed schedule: fewer steps, for its faults come close to each other."""
        rng = Random(f"aimed shape {seed}")
        cost = Cost(
            state_bytes=rng.choice((1 << 14, 1 << 22)), forward_s=rng.choice((0.03, 0.1, 0.3))
        )
        servers, trainers = rng.choice((3, 4, 6, 7, 9)), rng.choice((1, 2, 2, 2, 3, 3))
        return cls(servers, 1.0, cost, steps=AIMED_STEPS, trainers=trainers)

    @classmethod
    def drawn(cls, seed: int, *, tied: bool = False, delay: int = 0) -> "Shape":
        """One server a stage or up to three; steps of half a second or of several."""
        rng = Random(f"shape {seed}")
        cost = Cost(
            state_bytes=rng.choice((1 << 14, 1 << 22)), forward_s=rng.choice((0.03, 0.1, 0.3))
        )
        servers, every_s = rng.choice((3, 5, 7, 9)), rng.choice((1.5, 4.0, 8.0))
        return cls(servers, every_s, cost, trainers=rng.choice((1, 2, 3)), tied=tied, delay=delay)


def chaos_config(seed: int, shape: Shape, plan: FaultPlan) -> SwarmConfig:
    """The swarm that the faults hit."""
    model = ModelConfig(d_model=8, layers=4, heads=4, sequence_length=8, tie=shape.tied or None)
    batch = BatchConfig(microbatches=MICROBATCHES, rows=1, evaluate_every=0)
    what = {"model": model, "batch": batch, "codecs": RAW, "delay": shape.delay}
    run_config = small_run(stages=STAGES, steps=shape.steps, min_replicas=1, **what)
    return SwarmConfig(
        seed=seed,
        run=run_config,
        servers=shape.servers,
        trainers=shape.trainers,
        speeds=(1.0, 0.5, 2.0),
        regions=THREE_REGIONS,
        cost=shape.cost,
        faults=plan,
    )


def _decided(
    chain: record_chain.Chain, disk: MemoryChain, first: int, end: int
) -> Iterator[CommitRecord]:
    """The records of a node that it knows to be decided, as far as its disk has them."""
    return chain.own(disk.records(first, end))


class WatchedSwarm:
    """A run, and the invariants that are held against it."""

    def __init__(self, config: SwarmConfig, chains: Sequence[Chain] = ()) -> None:
        """`chains`: aimed faults, besides those of the configuration."""
        self.swarm = SimSwarm(config, self._counted)
        self._aimed = AimedInjection(self.swarm, chains)
        self.stalls = Stalls()
        self._contributions = Contributions()
        self._records = Records(self._decided)
        self._digests = Digests()
        self._breach: str | None = None
        self._incarnations: dict[PeerId, Incarnation] = {}
        self._stepped = asyncio.Event()
        self.swarm.heard = self._heard
        self.swarm.faults.changed = self._changed

    async def play(self) -> str:
        """Train to the end; returns the digest of the run, or raises Breach."""
        guard = asyncio.create_task(self._guard())
        playing = asyncio.create_task(self.swarm.play())
        await asyncio.wait((guard, playing), return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            playing.cancel()
            self._free_everybody()
            with contextlib.suppress(asyncio.CancelledError):
                await playing
        else:
            guard.cancel()
        if self._breach is not None:
            raise Breach(self._breach)
        result = playing.result()
        if result.ended.failed:
            raise Breach(f"ended: {result.ended.reason}; {self._state()}")
        return result.digest

    def _free_everybody(self) -> None:
        """Let stopped processes run, so that they can be cancelled."""
        for machine in self.swarm.machines:
            machine.rpc.suspension.release()
        self.swarm.trainers.release()

    async def _guard(self) -> None:
        """Return when the run is stuck, or an invariant is broken."""
        loop = asyncio.get_running_loop()
        while self._breach is None:
            last_s = self.stalls.ends_s[-1] if self.stalls.ends_s else 0.0
            due_s = max(self.swarm.faults.quiet_from_s, last_s) + STUCK_S
            self._stepped.clear()
            try:
                async with asyncio.timeout_at(min(due_s, loop.time() + LOOK_S)):
                    await self._stepped.wait()
            except TimeoutError:
                self._look_ahead()
                if loop.time() >= self.swarm.faults.quiet_from_s + STUCK_S and loop.time() >= due_s:
                    self._break(f"stuck at {loop.time():.0f} s: {self._state()}")

    def _break(self, what: str) -> None:
        self._breach = self._breach or what
        self._stepped.set()

    def _counted(self, peer: PeerId, stage: int, microbatch: int) -> None:
        by = self._incarnation_at(peer)
        if by is None:
            return
        if held := self._contributions.counted(stage, microbatch, by, self._alive):
            self._break(held)

    def _alive(self, one: Incarnation) -> bool:
        """Whether the coordinator that numbered a member lives, leads, and may use its sum."""
        for machine in self.swarm.trainers.seats:
            if machine.leads and machine.trainer.term == term_of(one.number):
                return machine.trainer.coordinator.holds(one)
        return False

    def _decided(self, record: CommitRecord) -> str | None:
        wrong = self._contributions.decided(record)
        self._contributions.forget(record.first)
        return wrong

    def _incarnation_at(self, peer: PeerId) -> Incarnation | None:
        """The incarnation that the server of a peer has, or had last."""
        machine = next(m for m in reversed(self.swarm.machines) if m.rpc.host.peer == peer)
        if (parts := machine.server._session) is not None:
            number = parts.session.scheduler.incarnation
            self._incarnations[peer] = Incarnation(peer.raw, number)
        return self._incarnations.get(peer)

    def _heard(self, report: Report) -> None:
        now_s = asyncio.get_running_loop().time()
        self._aimed.on_report(report)
        match report:
            case RunBegun():
                self.stalls.on_begin(now_s)
                self._look()
            case StepDone(step=step):
                self.stalls.on_version(step + 1, now_s)
                self._stepped.set()
                self._look()
            case Leads(version=version):
                self.stalls.on_leader(version, now_s)
            case SumKept():
                first = report.step * MICROBATCHES
                self._contributions.kept(report.stage, first, report.former, report.incarnation)
            case MemberLost(reason=reason) if "another had counted" in reason:
                self._break(f"clash: {report.incarnation}: {reason}")
            case MemberLost(reason=reason) if "differ" in reason:
                self._break(f"{report.incarnation}: {reason}")

    def _changed(self) -> None:
        """A fault has begun or ended, perhaps in the midst of a process's work."""
        asyncio.get_running_loop().call_soon(self._look, context=WORLD)

    def _look(self) -> None:
        """Look at all chains, at the servers' weights, and whether a step is possible."""
        for rpc, disk, node in self._chains():
            chain = node.machine.learner.chain
            read = functools.partial(_decided, chain, disk)
            if wrong := self._records.seen(rpc, chain.head.height, read):
                self._break(wrong)
        for server, _rpc in self._living():
            if server.stage is None or server.version is None:
                continue
            digest = server._replica.digest  # empty until it is hashed, behind a microbatch
            if digest and (wrong := self._digests.seen(server.stage, server.version, digest)):
                self._break(wrong)
            if wrong := self._records.applied(server.stage, server.version):
                self._break(wrong)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Tell the stalls whether a step is possible now."""
        now_s = asyncio.get_running_loop().time()
        self.stalls.on_possible(now_s, possible=self._step_is_possible())

    def _step_is_possible(self) -> bool:
        records = self._records.records
        last = records[-1] if records else self.swarm.trainers.genesis.head()
        voters = {rpc: node.machine.acceptor for rpc, _, node in self._chains()}
        accepted = [one.register.accepted for one in voters.values()]
        later = [one for one in accepted if one is not None and one.height >= len(records)]
        electorates = [last.voters, *(one.voters for one in later)]
        machines: dict[Living, SimRpc] = {}
        for trainer in self.swarm.trainers.seats:
            rpc = trainer.rpc
            if rpc in voters and not rpc.suspension.stopped:
                trains = rpc.host.peer.raw in last.trainers
                machines[Living(voters[rpc].voter, trains=trains)] = rpc
        for machine in self.swarm.machines:
            rpc, server = machine.rpc, machine.server
            if machine.died_s is None and not rpc.suspension.stopped:
                voter = voters[rpc].voter if rpc in voters else None
                whole = server.version is not None and (server.newest or 0) >= last.version
                serves = whole and machine.processor.slowness == 1.0
                machines[Living(voter, stage=server.stage if serves else None)] = rpc
        return step_is_possible(
            list(machines),
            STAGES,
            electorates,
            lambda one, other: self._connected(machines[one], machines[other]),
        )

    def _connected(self, one: SimRpc, other: SimRpc) -> bool:
        world = self.swarm.world.world
        return world.connected(one.host, other.host) and world.connected(other.host, one.host)

    def _chains(self) -> Iterator[tuple]:
        for machine in self.swarm.trainers.seats:
            if machine.rpc.running and machine.began:
                yield machine.rpc, machine.disk, machine.trainer._node
        for machine in self.swarm.machines:
            if machine.died_s is None and machine.server.leadership.node is not None:
                yield machine.rpc, machine.disk, machine.server.leadership.node

    def _living(self) -> Iterator[tuple]:
        for machine in self.swarm.machines:
            if machine.died_s is None:
                yield machine.server, machine.rpc

    def _state(self) -> str:
        """Where the run stands, for the text of a failure."""
        leader = self.swarm.trainers.leader
        servers = ", ".join(
            f"{server.stage}:v{server.version}"
            f"{'' if server._session else ' out'}{' stopped' if rpc.suspension.stopped else ''}"
            for server, rpc in self._living()
        )
        trainers = ", ".join(
            f"term {one.trainer.term if one.began else '-'}{' leads' if one.leads else ''}"
            + (" stopped" if one.rpc.suspension.stopped else "" if one.rpc.running else " dead")
            for one in self.swarm.trainers.seats
        )
        where = f"{len(self._records.records)} decided, trainers [{trainers}], servers [{servers}]"
        if leader is None:
            return where
        coordinator = leader.trainer.coordinator
        ready = [len(coordinator.members.ready(stage)) for stage in range(STAGES)]
        return f"step {coordinator.step}, {coordinator.phase.name}, ready {ready}, {where}"


def play(
    seed: int, kinds: tuple[FaultKind, ...] = DRAWN, *, tied: bool = False, delay: int = 0
) -> Outcome:
    """Play one seed to its end."""
    shape = Shape.drawn(seed, tied=tied, delay=delay)
    options = options_of(shape, kinds)
    return play_plan(seed, shape, draw_plan(seed, options))


def play_aimed(seed: int) -> Outcome:
    """Play the aimed schedule of one seed to its end."""
    shape = Shape.aimed(seed)
    drawn = draw_aimed(seed, AimedOptions(shape.servers, shape.trainers, shape.steps))
    return play_plan(seed, shape, drawn.plan, drawn.chains)


def measure(
    seed: int, kinds: tuple[FaultKind, ...] = DRAWN, *, tied: bool = False, delay: int = 0
) -> Outcome:
    """Play one seed, and compare with its shape without faults."""
    calm_step_s = longest_calm_step_s(Shape.drawn(seed, tied=tied, delay=delay))
    return replace(play(seed, kinds, tied=tied, delay=delay), calm_step_s=calm_step_s)


def measure_aimed(seed: int) -> Outcome:
    """Play the aimed schedule of one seed, and compare with its shape without faults."""
    return replace(play_aimed(seed), calm_step_s=longest_calm_step_s(Shape.aimed(seed)))


def longest_calm_step_s(shape: Shape) -> float:
    """The longest step of a short run of this shape in which nothing goes wrong, in seconds."""
    return _calm_step_s(replace(shape, every_s=0.0, steps=CALM_STEPS))


@functools.cache
def _calm_step_s(shape: Shape) -> float:
    """The same, played once for all seeds of a shape: to play each would take half of all time.

    Seeds differ by a tenth of a step.
    """
    calm = play_plan(0, shape, FaultPlan(shape.trainers, ()))
    assert calm.what is None, f"{shape} breaks an invariant without a fault: {calm.what}"
    return calm.longest_stall_s


def options_of(shape: Shape, kinds: tuple[FaultKind, ...] = DRAWN) -> FaultOptions:
    """Which faults are drawn for a swarm of this shape."""
    return FaultOptions(
        kinds=kinds,
        servers=shape.servers,
        trainers=shape.trainers,
        mortal_trainers=True,
        every_s=shape.every_s,
        steps=shape.steps,
    )


def play_plan(seed: int, shape: Shape, plan: FaultPlan, chains: Sequence[Chain] = ()) -> Outcome:
    """Play a run of this shape with these faults, and with those that are aimed."""
    what, digest, watched = None, "", None

    async def main() -> str:
        nonlocal watched
        watched = WatchedSwarm(chaos_config(seed, shape, plan), chains)
        return await watched.play()

    try:
        digest = run(main(), seed)
    except Breach as breach:
        what = str(breach)
    except Exception as error:  # noqa: BLE001  whatever is raised out of a run is a finding
        what = f"raised {in_words(error)}"
    assert watched is not None
    happened = tuple(in_short(fault) for fault in watched.swarm.faults.happened)
    return Outcome(seed, what, watched.stalls.longest_s, happened, digest)


def in_short(fault: Fault) -> str:
    """A fault in a few words: when, what, which seats, for how long."""
    since = "" if fault.step is None else f" after step {fault.step} is counted"
    how = " without a word" if fault.silent and fault.kind in (*DEADLY, *GUESTS) else ""
    what = " ".join((fault.kind.value, ",".join(map(str, fault.seats)))).rstrip()
    why = f" ({fault.why})" if fault.why else ""
    return f"{fault.at_s:.2f} s{since}: {what}{how}, {fault.seconds:.1f} s{why}"


def in_words(error: BaseException) -> str:
    """An error and what caused it, in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(in_words(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}".split("\n")[0]
