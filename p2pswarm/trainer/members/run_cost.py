"""RunCost: the money that a run has cost so far, from the prices that its machines have told.

A machine costs from the moment that it is given a stage until it leaves or is lost; one that is
back within `AWAY_S` was rented meanwhile. Sums are kept in the currency of the trainer's owner.

Whose price counts: the trainers' own, and those of servers that the run's owner has invited.
Strangers pay for their machines themselves, and could say anything: all of them together count for
`price_limit` an hour at most, however many they are.

Units:   money in the sums' currency; `now_s` seconds on the caller's clock.
"""

import math
from dataclasses import dataclass, fields
from enum import Enum

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.cost import AMOUNT_MAX, TOKENS_MAX, MachinePrice, Spent
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.run.messages.membership import Load
from p2pswarm.trainer.reports.reports import (
    Loaded,
    MemberJoined,
    MemberLost,
    MemberReady,
    Replayed,
    RunFinished,
    StepDone,
    WentBack,
)

HOUR_S = 3_600.0
AWAY_S = 60.0  # a server looks quickly for its trainer for so long

MemberReport = MemberJoined | MemberReady | MemberLost | Loaded
StepReport = StepDone | Replayed | WentBack | RunFinished


class Trust(Enum):
    """Who pays for a machine, as far as the run's owner is concerned."""

    INVITED = "invited"
    OTHER = "others"


@dataclass(frozen=True, slots=True)
class CostTerms:
    """What the trainer's owner has set."""

    currency: str
    own_per_hour: float
    price_limit: float
    """The most an hour that servers which nobody invited count for, all together."""


@dataclass(slots=True)
class _RentedMachine:
    number: int
    """Of its incarnation."""
    since_s: float
    """Until when it is in the sums."""
    per_hour: float = 0.0
    trust: Trust = Trust.OTHER
    ready: bool = False
    busy: float | None = None
    """The share of its time in which it computes; None: it has not told."""


class RunCost:
    """Told by reports who is there and what is done; keeps the sums."""

    def __init__(
        self,
        terms: CostTerms,
        batch: tuple[int, int],
        before: Spent | None = None,
        now_s: float = 0.0,
    ) -> None:
        """`batch`: the microbatches and the tokens of a step; `before`: what was spent already."""
        self.terms = terms
        self._microbatches, self._step_tokens = batch
        self._sums = {each.name: 0.0 for each in fields(Spent) if each.name != "currency"}
        self._machines: dict[bytes, _RentedMachine] = {}
        self._away: dict[bytes, _RentedMachine] = {}
        """Those that are lost, the first one first."""
        self._told_per_hour: float | None = None
        """What all strangers together say; None: it is to be added up anew."""
        self._standbys: dict[bytes, float] = {}
        """Prices of the trainers that stand by."""
        self._leads = False
        self._over = False
        self._now_s = now_s
        """Until when the trainers are in the sums."""
        self._told_s: float | None = None
        """When the coordinator has told us the sums, while another trainer leads."""
        self._busy = 0.0
        """The cost of computing since the last step."""
        self._busy_steps = (0.0, 0)
        """The cost of computing of all steps here, and how many they were."""
        self._replayed = 0
        """Attempts since the last step beyond the first of each microbatch."""
        self.currency = terms.currency
        self.foreign: dict[str, int] = {}
        """Currencies that are not counted, and how many prices were told in each."""
        self.spot = 0
        """Servers that said they may be taken away."""
        if before is not None:
            self._take(before)

    def on_sums(self, spent: Spent, now_s: float) -> None:
        """The coordinator tells what the run has cost, while this trainer stands by."""
        if not self._leads:
            self._take(spent)
            self._told_s = now_s

    def on_lead(self, now_s: float) -> None:
        """This trainer coordinates from now on; the machines were paid for in between, too."""
        if self._leads:
            return
        if self._told_s is not None:
            gap_s = min(AWAY_S, max(0.0, now_s - self._told_s))
            cost = self._sums["per_hour"] * gap_s / HOUR_S
            self._add("trainer", self._own_per_hour * gap_s / HOUR_S)
            self._add("invited", cost)
            self._add("idle", cost)
        self._leads, self._now_s = True, now_s
        self._machines.clear()
        self._told_per_hour = None
        self._away.clear()

    def on_step_down(self, now_s: float) -> None:
        """Another trainer leads."""
        self.spent(now_s)
        self._leads, self._told_s = False, now_s
        self._machines.clear()
        self._told_per_hour = None
        self._standbys.clear()

    def on_price(
        self, one: Incarnation, price: MachinePrice, now_s: float, *, invited: bool
    ) -> None:
        """A server has told what its machine costs."""
        machine = self._machine(one, now_s)
        self._settle(now_s)
        machine.trust = Trust.INVITED if invited else Trust.OTHER
        machine.per_hour = self._counted(price)
        self._told_per_hour = None
        self.spot += price.spot

    def on_standby(self, peer: bytes, price: MachinePrice | None, now_s: float) -> None:
        """A trainer that stands by has told its price; None: it is gone."""
        self._settle(now_s)
        self._standbys.pop(peer, None)
        if price is not None:
            self._standbys[peer] = self._counted(price)

    def on_member(self, report: MemberReport, now_s: float) -> None:
        """A server has joined, is ready, has told its load, or is lost."""
        one = report.incarnation
        match report:
            case MemberJoined():
                machine = self._machine(one, now_s)
                self._accrue(machine, now_s)
                machine.ready, machine.busy = False, None
            case _ if not self._is_there(one):
                return
            case MemberReady():
                self._accrue(self._machines[one.peer], now_s)
                self._machines[one.peer].ready = True
            case Loaded(load=load):
                self._accrue(self._machines[one.peer], now_s)
                self._machines[one.peer].busy = busy_share(load)
            case MemberLost():
                self._settle(now_s)
                self._lose(one.peer)

    def on_step(self, report: StepReport, now_s: float) -> None:
        """A step is done, or is done again."""
        match report:
            case Replayed():
                self._replayed += len(report.microbatches)
            case StepDone():
                self._settle(now_s)
                done = self._microbatches + self._replayed
                again = self._busy * self._replayed / done
                self._add("again", again)
                self._add("tokens", self._step_tokens, TOKENS_MAX)
                cost, steps = self._busy_steps
                self._busy_steps = cost + self._busy - again, steps + 1
                self._busy, self._replayed = 0.0, 0
            case WentBack(version=version, before=before):
                self._settle(now_s)
                cost, steps = self._busy_steps
                lost = min(before - version, steps)
                self._add("again", cost * lost / steps if steps else 0.0)
                self._busy_steps = (cost * (steps - lost) / steps if steps else 0.0), steps - lost
                self._sums["tokens"] = max(0.0, self._sums["tokens"] - lost * self._step_tokens)
            case RunFinished():
                self._settle(now_s)
                self._over = True

    def spent(self, now_s: float) -> Spent:
        """All sums up to `now_s`."""
        if self._leads:
            self._settle(now_s)
            self._sums["per_hour"] = min(AMOUNT_MAX, self._per_hour())
        return Spent(self.currency, **self._sums)

    @property
    def told_per_hour(self) -> float:
        """What servers that nobody invited say that they cost, all together."""
        if self._told_per_hour is None:  # each word of each server asks for it
            others = (one for one in self._machines.values() if one.trust is Trust.OTHER)
            self._told_per_hour = math.fsum(one.per_hour for one in others)
        return self._told_per_hour

    @property
    def _own_per_hour(self) -> float:
        """Of our own machine; 0 where the run counts in another currency than its owner."""
        return self.terms.own_per_hour if self.currency == self.terms.currency else 0.0

    def _take(self, spent: Spent) -> None:
        self.currency = spent.currency
        for name in self._sums:
            self._sums[name] = float(getattr(spent, name))

    def _counted(self, price: MachinePrice) -> float:
        """The price in the sums' currency; 0 if it is in another one."""
        if price.currency == self.currency or not price.per_hour:
            return price.per_hour
        if price.currency in self.foreign or len(self.foreign) < CURRENCIES_MAX:
            self.foreign[price.currency] = self.foreign.get(price.currency, 0) + 1
        return 0.0

    def _is_there(self, one: Incarnation) -> bool:
        machine = self._machines.get(one.peer)
        return machine is not None and machine.number == one.number

    def _machine(self, one: Incarnation, now_s: float) -> _RentedMachine:
        """The machine of an incarnation; it is there from now on, or since it was away shortly."""
        machine = self._machines.get(one.peer)
        if machine is None:
            machine = self._away.pop(one.peer, None)
            if machine is None or now_s > machine.since_s + AWAY_S:  # it may have been given back
                machine = _RentedMachine(one.number, now_s)
            machine.ready = False
            self._machines[one.peer] = machine
            self._told_per_hour = None
        machine.number = one.number
        return machine

    def _lose(self, peer: bytes) -> None:
        self._away[peer] = self._machines.pop(peer)
        self._told_per_hour = None
        if len(self._away) > MEMBERS_MAX:
            del self._away[next(iter(self._away))]

    def _factor(self) -> float:
        """How much of what others say counts."""
        told = self.told_per_hour
        return 1.0 if told <= self.terms.price_limit else self.terms.price_limit / told

    def _settle(self, now_s: float) -> None:
        """Bring all sums up to `now_s`, at the prices that have held so far."""
        factor = self._factor()
        for machine in self._machines.values():
            self._accrue(machine, now_s, factor)
        if self._leads and now_s > self._now_s:
            per_hour = self._own_per_hour + math.fsum(self._standbys.values())
            cost = per_hour * (now_s - self._now_s) / HOUR_S
            self._add("trainer", cost)
            if self._over:
                self._add("after_end", cost)
        self._now_s = max(now_s, self._now_s)

    def _accrue(self, machine: _RentedMachine, now_s: float, factor: float | None = None) -> None:
        if now_s <= machine.since_s:
            return
        cost = machine.per_hour * (now_s - machine.since_s) / HOUR_S
        machine.since_s = now_s
        if not cost:
            return
        if machine.trust is Trust.OTHER:
            counts = cost * (self._factor() if factor is None else factor)
            self._add("uncounted", cost - counts)
            cost = counts
        self._add(machine.trust.value, cost)
        if self._over:
            self._add("after_end", cost)
        elif not machine.ready:
            self._add("joining", cost)
        else:
            busy = 1.0 if machine.busy is None else machine.busy
            self._add("idle", (1.0 - busy) * cost)
            self._busy += busy * cost

    def _per_hour(self) -> float:
        there = self._machines.values()
        invited = math.fsum(one.per_hour for one in there if one.trust is Trust.INVITED)
        others = min(self.told_per_hour, self.terms.price_limit)
        standbys = math.fsum(self._standbys.values())
        return self._own_per_hour + standbys + invited + others

    def _add(self, name: str, amount: float, most: float = AMOUNT_MAX) -> None:
        self._sums[name] = min(most, self._sums[name] + amount)


CURRENCIES_MAX = 8  # that are remembered: who reads of so many knows enough


def busy_share(load: Load) -> float | None:
    """Return the share of its time in which a server computes; None if it has not measured it."""
    forward_s, backward_s = load.capacity.forward_s, load.capacity.backward_s
    if forward_s is None or backward_s is None:
        return None
    return min(1.0, load.rate_per_s * (forward_s + backward_s))
