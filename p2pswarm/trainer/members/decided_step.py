"""The last decided step: what a server needs that could not be told the commit.

A step is decided once, but its commit may reach nobody: the trainer froze, or a link broke. Then
all servers of a stage come back with the weights before the commit and with the reduced gradient
that it applies. The coordinator keeps the few numbers of the last commit, so it can send it again.

Units:   versions count commits: the commit of step t makes version t + 1.
Errors:  none.
"""

from dataclasses import dataclass, field
from enum import Enum

from p2pswarm.run.chain.record import DIGEST_BYTES
from p2pswarm.run.messages.membership import Join
from p2pswarm.run.messages.step import Commit
from p2pswarm.run.view import Incarnation


class Welcome(Enum):
    """How a server that joins comes to the current weights."""

    FETCH = "it downloads them, or draws the first ones"
    KEEP = "it has them"
    RESEND = "it has the weights before the last commit and the gradient: it gets the commit again"


@dataclass(frozen=True, slots=True)
class DecidedStep:
    """The commit of one step, and what it applies to."""

    step: int
    scale: float
    learning_rate: float
    gradients: dict[int, bytes]
    """The digest of each stage's reduced gradient, as the step's record has it."""
    states: dict[int, bytes]
    """The digest of each stage's state before the commit, as the record has it; where known."""
    members: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """The peers that averaged each stage's gradient: they hold what the commit applies to."""

    def applies_to(self, join: Join) -> bool:
        """Whether a server that joins could apply this commit to what it holds."""
        held, stage = join.held, join.stage
        if held is None or stage is None or join.version != self.step or held.step != self.step:
            return False
        state = as_recorded(join.digest)
        same = as_recorded(held.digest) == self.gradients.get(stage)
        return same and state == self.states.get(stage, state)

    def commit(self, run: bytes, join: Join, to: Incarnation) -> Commit:
        """The commit for one that holds the reduction of any generation with these bytes."""
        assert join.held is not None, "asked only after `applies_to`"
        state = b"" if join.stage is None else self.states.get(join.stage, b"")
        numbers = self.scale, self.learning_rate
        return Commit(run, self.step, join.held.generation, to.number, *numbers, state)


def as_recorded(digest: bytes) -> bytes:
    """A digest as a record has it: filled up with zeros to 32 bytes."""
    return digest.ljust(DIGEST_BYTES, b"\0")
