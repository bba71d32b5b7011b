"""Faults that are aimed at one message in one phase of a step, and the rule that fires them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from p2pswarm.net.wire.message import Message
from p2pswarm.sim.faults import FaultKind
from p2pswarm.sim.message_watch import Moment


class Role(Enum):
    """What a process is at a moment."""

    COORDINATOR = "the coordinator"
    """It leads, as far as it knows itself."""
    STANDBY = "a standby"
    """A trainer that does not lead; it may stand for a term."""
    SERVER = "a server"


class Phase(Enum):
    """A part of a step, as one sees it from outside."""

    WORK = "work"
    """From the end of the step before, or a takeover, to the first order to reduce."""
    END = "end"
    """From the first order to reduce to the end of the step."""
    SEARCH = "search"
    """From a fault that hits the coordinator until a trainer leads, or the step is done."""


class Whom(Enum):
    """Whom an aimed fault hits."""

    HERE = "here"
    """The process that the message leaves, or at which it arrives."""
    THERE = "there"
    """The process at the other end."""
    COORDINATOR = "coordinator"
    STANDBY = "standby"
    SERVER = "server"
    """One by lot."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The n-th message of a kind that a role sends or gets, in a phase."""

    message: type[Message]
    moment: Moment
    role: Role
    """Of the process that the message leaves, or at which it arrives."""
    number: int = 1
    """Counted from the moment when the aim is taken; with a phase, in each phase anew."""
    phase: Phase | None = None
    """None: in any."""
    step: int = 0
    """Not before this step."""

    def __str__(self) -> str:
        """The aim in a few words."""
        phase = "" if self.phase is None else f" in the {self.phase.value}"
        name = f"{self.message.__name__} {self.number} {self.moment.value}"
        return f"{name} {self.role.value}{phase} from step {self.step}"


@dataclass(frozen=True, slots=True)
class AimedFault:
    """A fault, its aim, and whom it hits."""

    aim: Aim
    kind: FaultKind
    whom: tuple[Whom, ...]
    seconds: float
    after_s: float = 0.0
    """From the aim's moment; 0: before the message has left, or is read."""
    silent: bool = False
    lot: float = 0.0
    """In [0, 1): which server, where it is one by lot."""


Chain = tuple[AimedFault, ...]
"""Faults of which each is aimed once the one before has been fired."""


class Triggers:
    """Chains of aimed faults; answers which faults a message fires. Each is fired once."""

    def __init__(self, chains: Iterable[Chain]) -> None:
        self._left: list[list[AimedFault]] = [list(chain) for chain in chains if chain]
        """Of each chain, the faults that have not been fired."""
        self._counts = [0 for _ in self._left]
        """The messages of the aim of each chain's first fault."""
        self._step = -1
        self._phase = Phase.WORK

    @property
    def step(self) -> int:
        """The step that is under way; -1 before the first."""
        return self._step

    @property
    def phase(self) -> Phase:
        """The phase that is under way."""
        return self._phase

    @property
    def messages(self) -> set[type[Message]]:
        """The kinds of messages that could fire a fault now; `on_message` needs no others."""
        return {chain[0].aim.message for chain in self._left if chain}

    def on_phase(self, step: int, phase: Phase) -> None:
        """A phase begins."""
        self._step, self._phase = step, phase
        for number, chain in enumerate(self._left):
            if chain and chain[0].aim.phase is not None:
                self._counts[number] = 0

    def on_message(self, message: type[Message], moment: Moment, role: Role) -> list[AimedFault]:
        """A message is about to leave, or to be read; returns the faults that it fires."""
        fired = []
        for number, chain in enumerate(self._left):
            if not chain or not self._fits(chain[0].aim, message, moment, role):
                continue
            self._counts[number] += 1
            if self._counts[number] == chain[0].aim.number:
                fired.append(chain.pop(0))
                self._counts[number] = 0
        return fired

    def _fits(self, aim: Aim, message: type[Message], moment: Moment, role: Role) -> bool:
        here = aim.message is message and aim.moment is moment and aim.role is role
        return here and self._step >= aim.step and aim.phase in (None, self._phase)
