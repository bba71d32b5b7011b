"""ControlProtocol: the control pipe over asyncio's transport of a socket.

Units:   bytes.
Errors:  whatever ends the connection reaches its user as LinkLost.
"""

import asyncio
from typing import cast

from p2pswarm.base.errors import LinkLost
from p2pswarm.net.os.base import CROWDED_BYTES, ControlMachine
from p2pswarm.net.os.os_errors import reason_of

READ_BYTES = 16 * 1024  # our own buffer: asyncio's, new for each read, costs 20 us
READ_BYTES_MAX = 64 * 1024  # one control record, for a connection that has filled the small buffer


class ControlProtocol(asyncio.BufferedProtocol):
    """Makes a ControlPipe of an asyncio transport, and passes what it receives to the user."""

    def __init__(self, user: ControlMachine, label: str) -> None:
        self._user = user
        self._label = label
        self._buffer = memoryview(bytearray(READ_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is up: from now on this object is the pipe."""
        connection = cast("asyncio.Transport", transport)  # uvloop's class does not derive from it
        connection.set_write_buffer_limits(CROWDED_BYTES)
        self.send = connection.write
        self.close = connection.close
        self.abort = connection.abort
        self._user.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory into which asyncio reads the next bytes."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` came; after one read that fills the buffer, a larger one replaces it."""
        self._user.received(bytes(self._buffer[:nbytes]))
        if nbytes == READ_BYTES == len(self._buffer):
            self._buffer = memoryview(bytearray(READ_BYTES_MAX))

    def pause_writing(self) -> None:
        """More than CROWDED_BYTES wait in memory."""
        self._user.pause_writing()

    def resume_writing(self) -> None:
        """Few bytes wait in memory again."""
        self._user.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        reason = "closed" if exc is None else reason_of(exc)
        self._user.lost(LinkLost(f"{self._label}: {reason}"))
