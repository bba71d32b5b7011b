"""A run itself: its signed description, and its end.

Errors:  BadMessage on arrival when a field breaks its limit.
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.swarm.messages.types import Reason
from p2pswarm.wire.message import Message, Size, message


@message(51)
@dataclass(frozen=True, slots=True)
class Manifest(Message):
    """A run, signed by its trainer; the run's id is a hash of `config`."""

    config: Annotated[bytes, Size(0, 16_384)]
    """`RunConfig` as canonical JSON."""
    trainer_key: Annotated[bytes, Size(32, 32)]
    address: Annotated[str, Size(300)]
    """Where the trainer listens."""
    signature: Annotated[bytes, Size(64, 64)]


@message(64)
@dataclass(frozen=True, slots=True)
class Finished(Message):
    """The trainer ends the run, well or not."""

    reason: Reason
