"""The messages by which peers tell each other newer cards over a link that is up.

Units:   bytes.
Errors:  BadMessage on arrival when a field breaks its limit.
Source:  docs/addresses.md; docs/wire.md.
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.cards.card import CARD_BYTES_MAX
from p2pswarm.net.wire.message import Message, Size, message

ANSWER_S = 10.0  # after which nobody waits for `CardHeard` any more


@message(11)
@dataclass(frozen=True, slots=True)
class CardNews(Message):
    """The sender's card; or the receiver's own, newer than the one that it introduced."""

    card: Annotated[bytes, Size(1, CARD_BYTES_MAX)]


@message(12)
@dataclass(frozen=True, slots=True)
class CardHeard(Message):
    """The answer to `CardNews`."""

    newer: Annotated[bytes, Size(0, CARD_BYTES_MAX)]
    """A card of the sender of the news that counts more; empty if there is none."""
