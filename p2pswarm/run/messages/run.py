"""A run itself: its signed description, who cannot read that, and its end."""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import LONG_BYTES_MAX, Message, Range, Size, Trailing, message
from p2pswarm.run.messages.field_limits import CardBytes, Peer, Reason, RunId, Step
from p2pswarm.settings.parser import RUN_BYTES_MAX, RUN_VERSION_MAX

ID_DIGITS = 12  # of a run's id, for people: as in the names of its checkpoints


@message(50)
@dataclass(frozen=True, slots=True)
class OtherVersion(Message):
    """A server tells a trainer that it cannot read its manifest; the reply is the same message."""

    speaks: Annotated[int, Range(0, RUN_VERSION_MAX)]
    """The version of runs that the sender's program reads and writes."""


@dataclass(frozen=True, slots=True)
class RunOrigin(Message):
    """The checkpoint that a run goes on from, or whose weights begin a new one."""

    run: RunId
    """The run that it is of."""
    version: Annotated[int, Range(0, 2**48)]
    """Of its weights."""
    checkpoint: Annotated[bytes, Size(32, 32)]
    """The SHA-256 of its manifest, so that it can be no other checkpoint."""
    anew: Annotated[bool, Trailing()] = False
    """Its weights are version 0 of a new run, which may have other settings."""
    before: Annotated[int, Range(0, 2**48), Trailing()] = 0
    """The optimizer's steps before version 0, whose moments the run goes on with."""

    @property
    def begins(self) -> int:
        """The version that the run begins with."""
        return 0 if self.anew else self.version

    @property
    def fresh(self) -> bool:
        """True if the run takes the weights alone: its moments begin with zeros."""
        return self.anew and not self.before

    @property
    def text(self) -> str:
        """Where the run begins, for people."""
        if not self.version:
            return f"begun from weights {self.checkpoint.hex()[:ID_DIGITS]}"
        begun = "begun from" if self.anew else "going on from"
        return f"{begun} run {self.run.hex()[:ID_DIGITS]}, step {self.version:,}"

    @property
    def encoded(self) -> bytes:
        """The bytes that a run's id and signature cover."""
        more = bytes([self.anew]) + self.before.to_bytes(8) if self.anew or self.before else b""
        return self.run + self.version.to_bytes(8) + self.checkpoint + more


@message(51, LONG_BYTES_MAX)
@dataclass(frozen=True, slots=True)
class Manifest(Message):
    """A run, signed by its trainer; the run's id is a hash of all above the key, and of origin."""

    config: Annotated[bytes, Size(0, RUN_BYTES_MAX)]
    """`RunConfig` as canonical JSON."""
    corpus: Annotated[bytes, Size(32, 32)]
    """SHA-256 of the text: trainers with the same make the same microbatches."""
    nonce: Annotated[bytes, Size(16, 16)]
    """Drawn when the run first started: two runs of one configuration and one text are two."""
    founder: Peer
    """Who made the run: the first trainer that may lead it, and the first voter."""
    trainer_key: Annotated[bytes, Size(32, 32)]
    address: Annotated[str, Size(300)]
    """Where the trainer listens."""
    signature: Annotated[bytes, Size(64, 64)]
    origin: RunOrigin | None = None
    """What the run goes on from; None for one that began with the first weights."""
    card: CardBytes = b""
    """The trainer's, which it has signed apart: where else it is dialled."""


@message(64)
@dataclass(frozen=True, slots=True)
class Finished(Message):
    """The trainer ends the run, well or not."""

    reason: Reason
    version: Step | None = None
    """Of the weights at the end: how many steps are done; None if the run has failed."""
    on_purpose: Annotated[bool, Trailing()] = False
    """Its owner ends it before its last step, as at the end of a budget: it has not failed."""


@message(103)
@dataclass(frozen=True, slots=True)
class RunOver(Message):
    """A run that has come to its end: a record in the DHT, for trainers that come back later."""

    run: RunId
    version: Step
    """Of the weights: how many steps are done."""
    reason: Reason
