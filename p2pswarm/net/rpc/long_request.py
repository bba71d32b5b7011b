"""A request that is longer than a frame, at its server, while its parts come.

How many there may be at once is limited, because the credit of their parts is given back at once:
calls do not wait for each other.

Units:   seconds, bytes.
Errors:  BadMessage for parts that break the rules, which ends the link.
Source:  docs/wire.md, section 7.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.net.link.events import StreamOpened
from p2pswarm.net.rpc.concurrency_limit import HandlerLimits
from p2pswarm.net.rpc.framing import RESET_LATE
from p2pswarm.net.rpc.handler_table import LongOpening, Opening
from p2pswarm.net.rpc.stream import StreamTransport

AT_ONCE = HandlerLimits(per_peer=4, total=128)
"""128 of 126 KiB hold 16 MiB, as much as unread replies may; a trainer sends a voter one."""
PARTS_S = 10.0  # until the last part has come: 100 kbit/s


@dataclass(frozen=True, slots=True)
class LongRequestUser:
    """What becomes of the request."""

    serve: Callable[[StreamOpened, Opening], None]
    """It is whole: its last frame, and what was asked."""
    drop: Callable[[], None]
    """It is late: nothing of its stream is wanted any more."""
    leave: Callable[[], None]
    """It is held no more; called once, in any case."""


class LongRequest:
    """The listener of a stream until its request is whole."""

    __slots__ = ("_begun", "_link", "_stream", "_timer", "_user")
    once = False

    def __init__(
        self, link: StreamTransport, stream: int, begun: LongOpening, user: LongRequestUser
    ) -> None:
        self._link = link
        self._stream = stream
        self._begun = begun
        self._user = user
        loop, timeout_s = asyncio.get_running_loop(), begun.timeout_s
        wait_s = PARTS_S if timeout_s is None else min(timeout_s, PARTS_S)
        self._timer = loop.call_later(wait_s, self._late)

    def data(self, frame: bytes, *, ended: bool) -> None:
        """Take the next part."""
        opening = self._begun.add(frame)
        if ended != (opening is not None):
            raise BadMessage("a call has one request")
        if opening is None:
            self._link.consumed(self._stream, len(frame))
            return
        self._over()
        self._user.serve(StreamOpened(self._stream, frame, ended=True), opening)

    def credit(self) -> None:
        """Do nothing: nothing is sent before the request is whole."""

    def fail(self, error: SwarmError) -> None:
        """The caller has given up, or the link has ended."""
        del error
        self._over()

    def _over(self) -> None:
        self._timer.cancel()
        self._user.leave()

    def _late(self) -> None:
        self._over()
        self._user.drop()
        self._link.reset(self._stream, RESET_LATE)
