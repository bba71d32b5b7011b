"""What is announced ahead, what an edge gets back, and which messages are said."""

import pytest
import torch
from server.pushes import BELOW, META, push, queue, scheduler

from p2pswarm.base.errors import Busy, DialFailed, Late, LinkLost, NotServing
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import Handed
from p2pswarm.run.messages.types import Work
from p2pswarm.server.outgoing import (
    Direction,
    OutgoingBundle,
    SizeForecast,
    edge_to,
    handed,
    metas_of,
    push_back,
    push_onward,
)
from p2pswarm.tensors.codecs.base import Unencodable
from p2pswarm.tensors.codecs.meta import TensorMeta
from p2pswarm.tensors.codecs.registry import encode_bundle

LARGE = TensorMeta(1, (1000,), 1, 4000)
EDGE, OTHER_EDGE = (b"p", 1), (b"q", 1)
ALIVE = [MemberRecord(who, "127.0.0.1:1", 2, 1, ready=True) for who in (b"p", b"q")]


def test_a_size_that_came_twice_is_foreseen():
    forecast = SizeForecast()
    seen = []
    for meta in (LARGE, LARGE, LARGE, TensorMeta(1, (2000,), 1, 8000)):
        forecast.learn((meta, meta))
        seen.append(forecast.foreseen)

    assert seen == [None, (LARGE, LARGE), (LARGE, LARGE), None]


def test_what_rides_inline_is_not_foreseen():
    forecast = SizeForecast()
    for _ in range(3):
        forecast.learn((LARGE, META))

    assert forecast.foreseen is None


def bundle(seed=1):
    return {"x": torch.randn(300, generator=torch.Generator().manual_seed(seed))}


def sent(outgoing, edge=EDGE, value=None):
    return outgoing.finish(encode_bundle(outgoing.begin(edge, ALIVE, value or bundle())))


def carried(direction, edge=EDGE):
    return len(direction.edges.edge(edge, [EDGE, OTHER_EDGE]).carried[0])


def test_codecs_without_state_encode_once_for_all_peers():
    outgoing = OutgoingBundle(Direction(("int8",)))
    assert outgoing.encoded_for(EDGE) is None
    outgoing.begin(EDGE, ALIVE, bundle())
    assert outgoing.encoded_for(EDGE) is None

    encoded = sent(outgoing)
    outgoing.failed(Busy("full"))

    assert outgoing.encoded_for(OTHER_EDGE) is encoded
    outgoing.taken()


def test_codecs_with_state_encode_for_each_peer():
    direction = Direction(("int8-ef",))
    outgoing = OutgoingBundle(direction)
    encoded = sent(outgoing)

    assert outgoing.encoded_for(EDGE) is encoded
    assert outgoing.encoded_for(OTHER_EDGE) is None
    outgoing.taken()
    assert (carried(direction), carried(direction, OTHER_EDGE)) == (1, 0)
    outgoing.taken()
    assert carried(direction) == 1


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (Busy("full"), 1),
        (NotServing("gone"), 1),
        (DialFailed("nobody"), 1),
        (Unencodable("NaN"), 1),
        (LinkLost("cut"), 0),
        (Late("slow"), 0),
    ],
)
def test_an_edge_gets_back_what_the_peer_surely_has_not(error, left):
    direction = Direction(("int8-ef",))
    first = OutgoingBundle(direction)
    sent(first)
    first.taken()
    outgoing = OutgoingBundle(direction)
    sent(outgoing)
    assert carried(direction) == 0

    outgoing.failed(error)
    outgoing.failed(Busy("again"))

    assert carried(direction) == left
    assert outgoing.encoded_for(EDGE) is None


def test_a_push_that_was_refused_before_anything_was_encoded_changes_nothing():
    direction = Direction(("int8-ef",))
    outgoing = OutgoingBundle(direction)
    outgoing.failed(Busy("full"))
    outgoing.taken()

    assert carried(direction) == 0


def test_each_tensor_goes_with_its_codec_and_what_its_edge_carries():
    direction = Direction(("raw", "int8-ef"))
    outgoing = OutgoingBundle(direction)
    value = {"x": torch.zeros(3), "memory": torch.ones(4)}

    first = outgoing.begin(EDGE, ALIVE, value)

    assert [(each.codec_name, each.carried) for each in first] == [("raw", ()), ("int8-ef", ())]
    outgoing.finish(encode_bundle(first))
    outgoing.taken()
    again = OutgoingBundle(direction).begin(EDGE, ALIVE, value)
    assert [len(each.carried) for each in again] == [0, 1]


def test_a_push_names_the_stage_it_goes_to_and_what_it_carries():
    item = queue(scheduler(), push(3, 2), BELOW)
    encoded = encode_bundle([])
    to = MemberRecord(b"p" * 32, "127.0.0.1:1", 2, 7, ready=True)

    onward, back = push_onward(item, 1, (LARGE,)), push_back(item, 1, (LARGE,))

    assert metas_of(encoded) == ()
    assert (onward.stage, onward.work, onward.tensors) == (2, Work.FORWARD, (LARGE,))
    assert (back.stage, back.work, back.tensors) == (0, Work.BACKWARD, (LARGE,))
    assert (onward.microbatch, back.attempt) == (3, 2)
    assert handed(onward, to) == Handed(0, 3, 2, b"p" * 32, 7)
    assert edge_to(to) == (b"p" * 32, 7)
