"""Reports of what machines cost: the prices that their owners have told."""

from dataclasses import dataclass

from p2pswarm.progress.events import Report
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.cost import MachinePrice


@dataclass(frozen=True, slots=True)
class ServerPriced(Report):
    """A server that was given a stage has told the price of its machine."""

    incarnation: Incarnation
    price: MachinePrice


@dataclass(frozen=True, slots=True)
class StandbyPriced(Report):
    """A trainer that stands by has told the price of its machine; None: it is gone."""

    peer: bytes
    price: MachinePrice | None
