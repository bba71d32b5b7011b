"""The bytes of version 1, pinned: a change here is a change of the protocol (docs/wire.md)."""

import json
from contextlib import nullcontext
from pathlib import Path

from net.link.harness import machine

from p2pswarm.base.ids import Address
from p2pswarm.net.bulk.channel import BulkChannel, ChannelCallbacks
from p2pswarm.net.bulk.receive_buffers import ReceiveBuffers
from p2pswarm.net.bulk.send_queue import SendQueue
from p2pswarm.net.bulk.upload_share import UploadShare
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.endpoint.link_request import JOIN, BulkJoin
from p2pswarm.net.link.session import Introduction
from p2pswarm.net.wire.message import encode

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "transport.json").read_text())
EXPORTER, NONCE_I, NONCE_R = bytes(range(32)), bytes(range(16)), bytes(range(16, 32))
SEND_KEY, RECEIVE_KEY = bytes(range(64, 96)), bytes(range(32))


def test_an_introduction():
    alice = Identity.generate(b"alice")
    card = Card.make(alice, 7, [Address("8.8.8.8", 4001)]).data
    raw = encode(Introduction(NONCE_I, 4001, "203.0.113.7", card))

    assert raw.hex() == GOLDEN["introduction"]


def test_a_join_its_answer_and_its_keys():
    join = BulkJoin.make(JOIN, EXPORTER, 3, NONCE_I)

    assert join.raw.hex() == GOLDEN["join"]
    assert join.answer(EXPORTER, NONCE_R).hex() == GOLDEN["answer"]
    assert [key.hex() for key in join.keys(EXPORTER, NONCE_R)] == GOLDEN["bulk_keys"]


def test_a_control_record_with_a_ping_and_an_opening():
    keys = Keys(SEND_KEY, RECEIVE_KEY, Suite.AES_GCM)
    connection = machine(dialled=True, keys=keys)
    connection.mux.open(b"hello", ended=True, priority=1)
    connection.mux.ping(b"12345678")

    assert connection.data_to_send(0.0).hex() == GOLDEN["control_record"]


def test_a_chunk():
    send_queue = SendQueue(nullcontext(), 1 << 20, UploadShare(nullcontext()), lambda: None)
    send_queue.add(7, memoryview(b"tensor"), 1, 1, lambda: None)
    keys = Keys(SEND_KEY, RECEIVE_KEY, Suite.CHACHA20_POLY1305)
    channel = BulkChannel(
        keys, ReceiveBuffers(nullcontext()), send_queue, ChannelCallbacks(print, print, print), 0.0
    )

    assert bytes(channel.next_out(0.0)).hex() == GOLDEN["chunk"]
