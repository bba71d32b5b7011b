"""Aims carried out in a simulated swarm: it is told each message, and lets the faults happen."""

import asyncio
from collections.abc import Callable, Iterable

from p2pswarm.net.wire.message import Message
from p2pswarm.progress.events import Report
from p2pswarm.run.messages.step import Reduce
from p2pswarm.sim.faults import Fault
from p2pswarm.sim.link import WORLD
from p2pswarm.sim.message_watch import Moment
from p2pswarm.sim.network_conditions import Host
from p2pswarm.sim.process import SimProcess
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import RunBegun, StepDone

from .aims import AimedFault, Chain, Phase, Role, Triggers, Whom


class AimedInjection:
    """Chains of aimed faults in one run."""

    def __init__(self, swarm: SimSwarm, chains: Iterable[Chain]) -> None:
        self._swarm = swarm
        self._triggers = Triggers(chains)
        self._wanted = self._triggers.messages
        if self._wanted:
            self._wanted.add(Reduce)  # it begins the end of a step
            swarm.world.on_message = self._on_message

    def on_report(self, report: Report) -> None:
        """A trainer that leads reports something."""
        match report:
            case RunBegun():
                self._triggers.on_phase(max(0, self._triggers.step), Phase.WORK)
            case StepDone(step=step):
                self._triggers.on_phase(step + 1, Phase.WORK)
            case Leads():
                self._triggers.on_phase(self._triggers.step, Phase.WORK)

    def _on_message(
        self, message: type[Message], moment: Moment, here: SimProcess, there: Host
    ) -> None:
        if message not in self._wanted or len(self._swarm.machines) < self._swarm.config.servers:
            return  # not every seat is taken yet
        role = self._role_of(here)
        triggers = self._triggers
        if message is Reduce and role is Role.COORDINATOR and triggers.phase is Phase.WORK:
            triggers.on_phase(triggers.step, Phase.END)
        fired = triggers.on_message(message, moment, role)
        if fired:
            self._wanted = triggers.messages | {Reduce}
        for one in fired:
            if one.after_s:
                loop = asyncio.get_running_loop()
                loop.call_later(one.after_s, self._fire, one, here.host, there, context=WORLD)
            else:
                WORLD.copy().run(self._fire, one, here.host, there)

    def _fire(self, aimed: AimedFault, here: Host, there: Host) -> None:
        seats = [self._seat_of(whom, aimed.lot, here, there) for whom in aimed.whom]
        hit = [seat for seat in seats if seat is not None]
        if len(set(hit)) < len(aimed.whom):
            return  # a guest, or nobody of that role: what comes after it in its chain is aimed now
        now_s = asyncio.get_running_loop().time()
        fault = Fault(
            aimed.kind, now_s, aimed.seconds, tuple(hit), aimed.silent, why=str(aimed.aim)
        )
        leads = self._seat_of(Whom.COORDINATOR, 0.0, here, there) in hit
        if self._swarm.faults.let_happen(fault) and leads:
            self._triggers.on_phase(self._triggers.step, Phase.SEARCH)

    def _role_of(self, process: SimProcess) -> Role:
        for machine in self._swarm.trainers.seats:
            if machine.rpc is process:
                return Role.COORDINATOR if machine.leads else Role.STANDBY
        return Role.SERVER

    def _seat_of(self, whom: Whom, lot: float, here: Host, there: Host) -> int | None:
        """The seat of a living machine; None if there is none like that."""
        match whom:
            case Whom.HERE | Whom.THERE:
                host = here if whom is Whom.HERE else there
                return self._seat(lambda seat: self._swarm.process_at(seat).host is host)
            case Whom.COORDINATOR:
                leader = self._swarm.trainers.leader
                rpc = None if leader is None else leader.rpc
                return self._seat(lambda seat: self._swarm.process_at(seat) is rpc)
            case Whom.STANDBY:
                trainers = self._swarm.trainers.seats[: self._swarm.config.trainers]
                return self._seat(lambda seat: seat < len(trainers) and not trainers[seat].leads)
            case Whom.SERVER:
                config = self._swarm.config
                return config.trainers + int(lot * config.servers)

    def _seat(self, is_meant: Callable[[int], bool]) -> int | None:
        swarm = self._swarm
        return next(
            (
                seat
                for seat in range(swarm.seats)
                if swarm.process_at(seat).running and is_meant(seat)
            ),
            None,
        )
