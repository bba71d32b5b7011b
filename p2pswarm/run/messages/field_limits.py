"""The types and limits that all messages of a run share.

Units:   `_s` seconds; steps, versions, attempts count from 0; version v = weights after v commits.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size

STAGES_MAX = 256  # a 100-layer model cut at every block stays well below
MEMBERS_MAX = 4096  # of one run; a view of so many is cut into parts of VIEW_PART_MAX
VIEW_PART_MAX = 128  # records in one message: with the longest addresses they stay under 60 KiB
GROUP_MAX = 128  # members of one stage: each sends to all others, and an order names them all
MICROBATCHES_MAX = 65_536  # a step's ledger is a bitmap: 8 KiB at this size
REASON_CHARS = 200
NAME_CHARS_MAX = 64  # of a machine: the longest label of a host name has 63
CARD_BYTES_MAX = 1_200  # what a peer signs has 1,024 (net/cards/card.py)
TERM_MAX = 2**30 - 1  # the numbers of a term's incarnations begin at term * 2**32, below 2**62
TRAINERS_MAX = 16  # who may lead: some to take over, and a record has room for them
CODES_MAX = 2  # codes of codecs at a boundary: one for activations and one for gradients
VOTERS_MAX = 5  # with 5, any 2 may be lost; more cost a round trip each and help no longer

Stage = Annotated[int, Range(0, STAGES_MAX - 1)]
Step = Annotated[int, Range(0, 2**48)]
Microbatch = Annotated[int, Range(0, 2**62)]
Attempt = Annotated[int, Range(0, 2**31)]
Generation = Annotated[int, Range(0, 2**62)]
IncarnationNumber = Annotated[int, Range(0, 2**62)]
ViewNumber = Annotated[int, Range(0, 2**48)]
Peer = Annotated[bytes, Size(32, 32)]
RunId = Annotated[bytes, Size(16, 16)]
Digest = Annotated[bytes, Size(0, 32)]
Term = Annotated[int, Range(0, TERM_MAX)]
Era = Annotated[int, Range(0, 2**48)]
Height = Annotated[int, Range(0, 2**48)]
TARGETS_MAX = 2**52  # of a step: so many tokens have the most microbatches, rows and positions
Targets = Annotated[int, Range(0, TARGETS_MAX)]
SumScale = Annotated[float, Range(0.0, float(TARGETS_MAX))]
Reason = Annotated[str, Size(REASON_CHARS)]
SECONDS_MAX = 1e9  # 30 years
Seconds = Annotated[float, Range(0.0, SECONDS_MAX)]
CardBytes = Annotated[bytes, Size(0, CARD_BYTES_MAX)]
"""An encoded card (`net/cards/card.py`); empty: its peer has none, or nobody knows it."""
Bitmap = Annotated[bytes, Size(0, MICROBATCHES_MAX // 8)]


class Work(IntEnum):
    """What a push asks for."""

    FORWARD = 0
    BACKWARD = 1
    EVALUATE = 2
    """Forward to the end for the loss; nothing is kept or counted."""


class Obstacle(IntEnum):
    """Why a microbatch cannot go on from a server."""

    ROAD = 0
    """It could not be handed to another server."""
    WORK = 1
    """It cannot be computed here."""
    NOT_FINITE = 2
    """Its loss or a gradient of it is not finite."""


Links = Annotated[int, Range(0, 2 * MEMBERS_MAX**2)]  # all servers of two stages with each other


@dataclass(frozen=True, slots=True)
class PathCounts(Message):
    """Number of links of a member that each kind of path carries."""

    direct: Links = 0
    mapped: Links = 0
    """Through a router that forwards a port."""
    punched: Links = 0
    relayed: Links = 0


NO_PATHS = PathCounts()
