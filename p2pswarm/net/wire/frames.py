"""Frames: the contents of a control connection's records, one after another.

    frame = kind u8 | flags u8 | priority u8 | 0 u8 | stream u32 | length u32 | payload

Numbers are big-endian. Stream 0 is the link itself. A frame never spans records, and a
message never spans frames: what one side sends in one call arrives in one event.

Errors:  BadFrame for bytes that are not complete, known frames.
Source:  docs/wire.md; yamux, which also has 12 bytes but no session credit.
"""

import struct

from p2pswarm.base.errors import BadFrame

OPEN = 1
DATA = 2
CREDIT = 3
RESET = 4
PING = 5
PONG = 6
GOAWAY = 7
ASK_BULK = 8
CLOSE = 9
BULK_DONE = 10
BULK_OVER = 11
ALTERED = 12
BULK_CAME = 13

END = 1  # flag of OPEN and DATA: this half of the stream is finished
PRIORITIES = 8  # 0 goes first; net/rpc/base.py names three

HEADER = struct.Struct(">BBBxII")
HEADER_BYTES = HEADER.size
MESSAGE_BYTES_MAX = 60 * 1024  # fits into a record with its header
RECORD_BYTES_MAX = 64 * 1024  # plaintext of a control record: an urgent frame waits for at most one
PING_BYTES = 8
NUMBER = struct.Struct(">I")  # payload of CREDIT (bytes), RESET (code), ALTERED (path)
TRANSFER = struct.Struct(">Q")  # payload of BULK_DONE
BAN = struct.Struct(">BI")  # payload of CLOSE, if there is one: offence, seconds
CHANNEL = struct.Struct(">IQ")  # payload of BULK_OVER, BULK_CAME: number, chunks

_LENGTHS = {  # shortest and longest payload
    OPEN: (0, MESSAGE_BYTES_MAX),
    DATA: (0, MESSAGE_BYTES_MAX),
    CREDIT: (NUMBER.size, NUMBER.size),
    RESET: (NUMBER.size, NUMBER.size),
    PING: (PING_BYTES, PING_BYTES),
    PONG: (PING_BYTES, PING_BYTES),
    GOAWAY: (0, 0),
    ASK_BULK: (0, 0),
    CLOSE: (0, BAN.size),
    BULK_DONE: (TRANSFER.size, TRANSFER.size),
    BULK_OVER: (CHANNEL.size, CHANNEL.size),
    BULK_CAME: (CHANNEL.size, CHANNEL.size),
    ALTERED: (NUMBER.size, NUMBER.size),
}
_OF_STREAMS = (OPEN, DATA, RESET)  # never on stream 0
_OF_LINK = (PING, PONG, GOAWAY, ASK_BULK, CLOSE, BULK_DONE, BULK_OVER, BULK_CAME, ALTERED)

Frame = tuple[int, int, int, int, bytes]
"""(kind, flags, priority, stream, payload); a tuple, because it is fast to make."""


def encode(
    kind: int, stream: int, payload: bytes = b"", flags: int = 0, priority: int = 0
) -> bytes:
    """The bytes of one frame."""
    return HEADER.pack(kind, flags, priority, stream, len(payload)) + payload


def check_message(data: bytes) -> None:
    """Raise ValueError if our user's message does not fit one frame."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {len(data)} bytes, allowed are {MESSAGE_BYTES_MAX}")


def fitting(encoded: list[bytes]) -> tuple[int, int]:
    """Return how many of these frames, from the first one, fit one record, and their bytes."""
    count = size = 0
    while count < len(encoded) and size + len(encoded[count]) <= RECORD_BYTES_MAX:
        size += len(encoded[count])
        count += 1
    return count, size


def decode(record: bytes) -> list[Frame]:
    """The frames of one record's plaintext; raises BadFrame if any of them is invalid."""
    frames: list[Frame] = []
    start, end = 0, len(record)
    while start < end:
        body = start + HEADER_BYTES
        if body > end:
            raise BadFrame(f"{end - start} bytes are left where a frame header has {HEADER_BYTES}")
        kind, flags, priority, stream, length = HEADER.unpack_from(record, start)
        start = body + length
        if start > end:
            raise BadFrame(f"a frame of {length} bytes is longer than its record")
        _check(kind, flags, priority, stream, length)
        frames.append((kind, flags, priority, stream, record[body:start]))
    return frames


def _check(kind: int, flags: int, priority: int, stream: int, length: int) -> None:
    limits = _LENGTHS.get(kind)
    if limits is None:
        raise BadFrame(f"frame kind {kind} is unknown")
    if not limits[0] <= length <= limits[1]:
        raise BadFrame(f"a frame of kind {kind} with {length} bytes")
    if flags > END or priority >= PRIORITIES:
        raise BadFrame(f"a frame with flags {flags} and priority {priority}")
    if (kind in _OF_STREAMS and stream == 0) or (kind in _OF_LINK and stream != 0):
        raise BadFrame(f"a frame of kind {kind} on stream {stream}")
