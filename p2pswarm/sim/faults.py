"""The faults of a simulated run, as a value, and their injection.

Units:   virtual seconds from the start of the first step, or from the end of a step's work.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from p2pswarm.sim.compute import Processor
from p2pswarm.sim.link import WORLD, SimClock
from p2pswarm.sim.network_conditions import Host
from p2pswarm.sim.process import Population, SimPeer


class FaultKind(Enum):
    """The kind of a fault."""

    KILL = "kill"
    """A process ends, and another machine comes for it: another peer, with an empty disk."""
    RESTART = "restart"
    """A process ends and comes back as the same peer: it has its key and its chain file."""
    REJOIN = "rejoin"
    """A machine loses its network and all its links for a while; its memory is kept."""
    FREEZE = "freeze"
    """A process is stopped, as by SIGSTOP, and goes on later."""
    CUT = "cut"
    """Nothing passes between two machines."""
    ONE_WAY = "one-way"
    """Nothing passes from one machine to another; the other way is whole."""
    ISLAND = "island"
    """Some machines can reach each other, but none of the others."""
    RESET = "reset"
    """The link between two machines ends, and can be made again at once."""
    SLOW = "slow"
    """A machine's link has a fiftieth of its rate, and each packet is late."""
    WIPE = "wipe"
    """A process ends and comes back as the same peer, whose disk is lost: with its key alone."""
    CRAWL = "crawl"
    """A server computes a hundred times slower, as beside another program on its processor."""
    VISIT = "visit"
    """A further server comes, and ends after a while."""
    STANDBY = "standby"
    """A further trainer comes and stands by, and ends after a while."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    A fault has a kind, a time, and the seats that it hits. A seat is the place of one machine: the
    trainers have the first seats and the servers the others. A machine that comes for a dead one
    takes its seat.

    Most of the dangerous moments are short and come at the end of a step, so a share of the faults
    is aimed: their time counts from the moment when every stage has counted a step, and the
    averaging begins.
    """

    kind: FaultKind
    at_s: float
    """From the start of the first step; of an aimed fault, from the end of its step's work."""
    seconds: float
    """The time that it lasts; then the machine is back, or the path is whole."""
    seats: tuple[int, ...]
    silent: bool = False
    """Of a death: a power cut, so that no kernel tells the peers.

    The disk is as at the last fsync in either case: a voter's entry is on it before the answer that
    tells of it (`run/chain/chain_node.py`).
    """
    step: int | None = None
    """The step that it is aimed at; None: it is not aimed."""
    why: str = ""
    """What it was aimed at, in words, if it was let happen by somebody who aims better."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Everything that goes wrong in one run."""

    trainers: int = 1
    faults: tuple[Fault, ...] = ()


CRAWLS = 100.0  # a processor that others use, or that computes without its GPU
SLOWER = 50.0  # a link of 25 MB/s becomes one of 4 Mbit/s
LATE_S = 0.15  # what a slow link adds to each way, as a full queue at a router does


class SeatedMachines(Protocol):
    """The machines of a swarm, by their seats."""

    @property
    def seats(self) -> int:
        """Return the number of machines that have come."""
        ...

    def process_at(self, seat: int) -> SimPeer:
        """The process of a seat, dead or alive."""
        ...

    def may_end(self, seat: int, *, same: bool) -> bool:
        """Return whether the run can go on when a seat's machine ends; `same`: it comes back."""
        ...

    def end(self, seat: int, *, silent: bool, same: bool) -> None:
        """End the machine of a seat; `same`: it comes back as the same peer."""
        ...

    def begin(self, seat: int, *, same: bool) -> None:
        """Let a machine take a seat: the same peer as before, or a new one."""
        ...

    def wipe(self, seat: int) -> None:
        """Lose the disk of a seat's machine, which has ended."""
        ...

    def processor_at(self, seat: int) -> Processor | None:
        """Return what a seat's machine computes with; None if it computes nothing."""
        ...

    def visit(self, *, trainer: bool, silent: bool) -> Callable[[], None]:
        """Let a machine without a seat come; returns what ends it, unless the run needs it then."""
        ...


class FaultInjection:
    """The faults of one run: lets each happen at its time, unless it would end the run for good."""

    def __init__(
        self, plan: FaultPlan, machines: SeatedMachines, population: Population[Any]
    ) -> None:
        self.happened: list[Fault] = []
        """The faults that have begun; those that could not happen are left out."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each beginning and each end of a fault."""
        self.quiet_from_s = 0.0
        """When all faults are over, but for those that are aimed at steps to come."""
        self._plan = plan
        self._machines = machines
        self._population = population
        self._slowed: Counter[Host] = Counter()
        """The number of faults of this kind that each host suffers now."""
        self._clock: SimClock | None = None

    def start(self, clock: SimClock) -> None:
        """Count the plan's time from now on."""
        now_s = clock.time()
        self._clock = clock
        for fault in self._plan.faults:
            if fault.step is None:
                clock.call_at(now_s + fault.at_s, self._begin, fault, context=WORLD)
                self.quiet_from_s = max(self.quiet_from_s, now_s + fault.at_s + fault.seconds)

    def on_step_work(self, step: int) -> None:
        """Every stage has counted a step: what is aimed at it will happen."""
        clock = self._clock
        for fault in self._plan.faults:
            if clock is not None and fault.step == step:
                clock.call_later(fault.at_s, self._begin, fault, context=WORLD)

    def let_happen(self, fault: Fault) -> bool:
        """Let a fault happen that is not in the plan, now; False if it cannot."""
        happened = len(self.happened)
        self._begin(fault)
        return len(self.happened) > happened

    def _begin(self, fault: Fault) -> None:
        undo, clock = self._let_happen(fault), self._clock
        if undo is None:
            return
        assert clock is not None, "nothing happens before the start"
        self.happened.append(fault)
        self.quiet_from_s = max(self.quiet_from_s, clock.time() + fault.seconds)
        self.changed()
        clock.call_later(fault.seconds, self._end, undo, context=WORLD)

    def _end(self, undo: Callable[[], None]) -> None:
        undo()
        self.changed()

    def _let_happen(self, fault: Fault) -> Callable[[], None] | None:
        """Begin a fault; returns what ends it, or None if it cannot happen."""
        if any(seat >= self._machines.seats for seat in fault.seats):
            return None  # its machine has not come yet
        match fault.kind:
            case FaultKind.KILL | FaultKind.RESTART | FaultKind.WIPE:
                undo = self._death(fault)
            case FaultKind.FREEZE:
                undo = self._freeze(fault.seats[0])
            case FaultKind.CRAWL:
                undo = self._crawl(fault.seats[0])
            case FaultKind.SLOW:
                undo = self._slow(fault.seats[0])
            case FaultKind.RESET:
                undo = self._reset(fault)
            case FaultKind.REJOIN:
                undo = self._rejoin(fault.seats[0])
            case FaultKind.CUT | FaultKind.ONE_WAY | FaultKind.ISLAND:
                undo = self._cut(list(self._paths(fault)))
            case FaultKind.VISIT | FaultKind.STANDBY:
                trainer = fault.kind is FaultKind.STANDBY
                undo = self._machines.visit(trainer=trainer, silent=fault.silent)
        return undo

    def _reset(self, fault: Fault) -> Callable[[], None]:
        self._population.reset(*self._hosts(fault))
        return lambda: None

    def _death(self, fault: Fault) -> Callable[[], None] | None:
        machines, seat = self._machines, fault.seats[0]
        same = fault.kind is FaultKind.RESTART
        if not machines.process_at(seat).running or not machines.may_end(seat, same=same):
            return None
        machines.end(seat, silent=fault.silent, same=same)
        if fault.kind is not FaultKind.WIPE:
            return lambda: machines.begin(seat, same=same)
        machines.wipe(seat)
        return lambda: machines.begin(seat, same=True)

    def _crawl(self, seat: int) -> Callable[[], None] | None:
        processor = self._machines.processor_at(seat)
        if processor is None or processor.slowness > 1.0:
            return None
        processor.slowness = CRAWLS

        def undo() -> None:
            processor.slowness = 1.0

        return undo

    def _freeze(self, seat: int) -> Callable[[], None] | None:
        process = self._machines.process_at(seat)
        if not process.running:
            return None
        self._population.freeze(process)
        return lambda: self._population.thaw(process)

    def _slow(self, seat: int) -> Callable[[], None]:
        host = self._machines.process_at(seat).host
        self._slowed[host] += 1
        if self._slowed[host] == 1:  # one that is slow already gets no slower: no link is so bad
            host.up_bytes_per_s /= SLOWER
            host.down_bytes_per_s /= SLOWER
            host.late_s += LATE_S

        def undo() -> None:
            self._slowed[host] -= 1
            if not self._slowed[host]:
                host.up_bytes_per_s *= SLOWER
                host.down_bytes_per_s *= SLOWER
                host.late_s -= LATE_S

        return undo

    def _rejoin(self, seat: int) -> Callable[[], None] | None:
        process = self._machines.process_at(seat)
        if not process.running:
            return None
        for link in self._population.links_of(process.host):
            link.end_after(0.0)
        return self._cut(list(self._between([seat])))

    def _cut(self, paths: list[tuple[Host, Host]]) -> Callable[[], None]:
        world = self._population.world
        world.cut(paths)
        return lambda: world.mend(paths)

    def _paths(self, fault: Fault) -> Iterator[tuple[Host, Host]]:
        if fault.kind is FaultKind.ISLAND:
            yield from self._between(list(fault.seats))
            return
        near, far = self._hosts(fault)
        yield near, far
        if fault.kind is FaultKind.CUT:
            yield far, near

    def _between(self, island: list[int]) -> Iterator[tuple[Host, Host]]:
        """All paths from an island and to it."""
        machines = self._machines
        hosts = {seat: machines.process_at(seat).host for seat in range(machines.seats)}
        for inside in island:
            for seat, outside in hosts.items():
                if seat not in island:
                    yield hosts[inside], outside
                    yield outside, hosts[inside]

    def _hosts(self, fault: Fault) -> tuple[Host, Host]:
        near, far = (self._machines.process_at(seat).host for seat in fault.seats)
        return near, far
