"""Exchanges of the simulated network."""

from contextlib import AbstractAsyncContextManager

from p2pswarm.ids import Contact
from p2pswarm.rpc.base import Exchange
from p2pswarm.wire.codec import Message


def converse(
    rpc: object, to: Contact, opening: Message, timeout_s: float | None
) -> AbstractAsyncContextManager[Exchange]:
    """Open an exchange."""
    raise NotImplementedError
