"""A rogue that uses a stream's number again behind its RESET: neither side's tasks fail."""

import logging

import pytest
from rpc.test_link_rpc import Ask, Rogue, meet

from p2pswarm.rpc.framing import Kind, pack_opening
from p2pswarm.rpc.link_rpc import LinkRpc
from p2pswarm.transport import frames
from p2pswarm.transport.events import StreamData
from p2pswarm.wire.message import encode

CALL = pack_opening(Kind.UNARY, None, encode(Ask(1)))
STREAM = pack_opening(Kind.STREAM, None, encode(Ask(1)))
NUMBERS = range(1001, 1201, 2)


def opening(number: int, kind: Kind) -> bytes:
    if kind is Kind.UNARY:
        return frames.encode(frames.OPEN, number, CALL, frames.END)
    return frames.encode(frames.OPEN, number, STREAM)


@pytest.mark.parametrize("first", list(Kind))
@pytest.mark.parametrize("second", list(Kind))
def test_a_number_that_is_used_again_behind_its_reset_is_another_stream(first, second, caplog):
    caplog.set_level(logging.WARNING)

    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        link = await rogue.endpoint.link(rpc.contact)
        for number in NUMBERS:
            reset = frames.encode(frames.RESET, number, frames.NUMBER.pack(16))
            link._mux._say(opening(number, first) + reset + opening(number, second))
        link.open(CALL, ended=True)

        assert isinstance(await rogue.hear(StreamData), StreamData)
        assert rogue.endpoint.links(), "the link lives"

    meet(body)
    assert not caplog.records
