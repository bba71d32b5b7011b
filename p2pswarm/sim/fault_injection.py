"""Lets the faults of a plan happen in a simulated swarm, each at its time.

Units:   virtual seconds.
Errors:  none; a fault that would end the run for good does not happen.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from p2pswarm.sim.call import SimPeer
from p2pswarm.sim.clock import SimClock
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.process import Population
from p2pswarm.sim.suspension import WORLD
from p2pswarm.sim.world import Host

SLOWER = 50.0  # a link of 25 MB/s becomes one of 4 Mbit/s
LATE_S = 0.15  # what a slow link adds to each way, as a full queue at a router does


class SeatedMachines(Protocol):
    """The machines of a swarm, by their seats."""

    @property
    def seats(self) -> int:
        """How many there are."""
        ...

    def process_at(self, seat: int) -> SimPeer:
        """The process of a seat, dead or alive."""
        ...

    def may_end(self, seat: int, *, same: bool) -> bool:
        """Whether the run can go on when the machine of a seat ends; `same`: it comes back."""
        ...

    def end(self, seat: int, *, silent: bool, same: bool) -> None:
        """End the machine of a seat; `same`: it comes back as the same peer."""
        ...

    def begin(self, seat: int, *, same: bool) -> None:
        """Let a machine take a seat: the same peer as before, or a new one."""
        ...


class FaultInjection:
    """The faults of one run."""

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
        """How many faults of this kind each host suffers now."""
        self._clock: SimClock | None = None

    def start(self, clock: SimClock) -> None:
        """Count the plan's time from now on."""
        now_s = clock.time()
        self._clock = clock
        for fault in self._plan.faults:
            if fault.step is None:
                clock.call_at(now_s + fault.at_s, self._begin, fault, context=WORLD)
                self.quiet_from_s = max(self.quiet_from_s, now_s + fault.at_s + fault.seconds)

    def step_counted(self, step: int) -> None:
        """Every stage has counted a step: what is aimed at it will happen."""
        clock = self._clock
        for fault in self._plan.faults:
            if clock is not None and fault.step == step:
                clock.call_later(fault.at_s, self._begin, fault, context=WORLD)

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
        match fault.kind:
            case FaultKind.KILL | FaultKind.RESTART:
                return self._death(fault)
            case FaultKind.FREEZE:
                return self._freeze(fault.seats[0])
            case FaultKind.SLOW:
                return self._slow(fault.seats[0])
            case FaultKind.RESET:
                near, far = self._hosts(fault)
                self._population.reset(near, far)
                return lambda: None
            case FaultKind.REJOIN:
                return self._rejoin(fault.seats[0])
            case FaultKind.CUT | FaultKind.ONE_WAY | FaultKind.ISLAND:
                return self._cut(list(self._paths(fault)))

    def _death(self, fault: Fault) -> Callable[[], None] | None:
        machines, seat = self._machines, fault.seats[0]
        same = fault.kind is FaultKind.RESTART
        if not machines.process_at(seat).running or not machines.may_end(seat, same=same):
            return None
        machines.end(seat, silent=fault.silent, same=same)
        return lambda: machines.begin(seat, same=same)

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
