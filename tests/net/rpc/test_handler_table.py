"""What an opening asks for, and who serves it."""

import pytest

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.framing import Failure, Kind, pack_opening
from p2pswarm.net.rpc.handler_table import HandlerTable, Opening, read_opening
from p2pswarm.net.wire.message import Message, encode

REQUEST = Failure("as good as any")
UNKNOWN = b"\x91\xcd\xfd\xe7"  # a message of code 64999


def test_an_opening_says_what_is_asked_and_until_when():
    frame = pack_opening(Kind.UNARY, 1.5, encode(REQUEST))

    assert read_opening(frame, ended=True) == Opening(Kind.UNARY, 1.5, REQUEST)


@pytest.mark.parametrize(("kind", "ended"), [(Kind.UNARY, False), (Kind.STREAM, True)])
def test_a_call_is_one_frame_and_a_stream_is_not(kind: Kind, ended: bool):
    with pytest.raises(BadMessage, match=kind.name):
        read_opening(pack_opening(kind, None, encode(REQUEST)), ended=ended)


def test_a_message_that_this_release_does_not_know_is_not_served():
    with pytest.raises(NotServing, match="64999"):
        read_opening(pack_opening(Kind.UNARY, None, UNKNOWN), ended=True)


def test_handlers_are_found_by_the_type_of_message_and_the_kind_of_stream():
    table = HandlerTable()

    def answer(peer: PeerId, request: Message) -> Message:
        del peer
        return request

    async def converse(stream: object, opening: Message) -> None:
        del stream, opening

    with pytest.raises(NotServing, match="calls of Failure here"):
        table.unary(Failure)
    with pytest.raises(NotServing, match="streams of Failure here"):
        table.stream(REQUEST)
    table.serve_unary(Failure, answer)
    table.serve_stream(Failure, converse)

    assert table.unary(Failure) is answer
    assert table.stream(REQUEST) is converse
