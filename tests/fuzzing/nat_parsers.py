"""The parsers of how peers are reached: what routers, relays and cards say."""

import contextlib
import itertools
from dataclasses import replace

from discovery.gossip.harness import RUN as GOSSIP_RUN
from discovery.gossip.harness import SERVING
from discovery.gossip.harness import card as gossip_card
from discovery.gossip.harness import member as gossip_member
from discovery.gossip.harness import record as gossip_record
from fuzzing.base import joined, parser, parts

from p2pswarm.base.errors import BadHandshake, BadMessage, Busy, DialFailed, Refused
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.gossip import record as records
from p2pswarm.discovery.gossip.messages import (
    AgedRecord,
    Compare,
    Compared,
    Deliver,
    RecordBody,
    SignedRecord,
)
from p2pswarm.net.cards import card as cards
from p2pswarm.net.cards.card import Card, CardBody, SignedCard
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.preface import (
    SEAL_BYTES,
    CircuitRequest,
    CircuitStatus,
    check_circuit_answer,
    circuit_answer,
    observation_answer,
    read_observation,
)
from p2pswarm.net.os.addresses import Scope
from p2pswarm.net.wire.message import MESSAGE_BYTES_MAX, decode, encode
from p2pswarm.reach.nat import nat_pmp, pcp, upnp
from p2pswarm.reach.nat.mapping_search import CallRouter, LeaseSearch, Place

GATEWAY, OWN = "192.168.77.1", "192.168.77.5"
ENEMY = Identity.generate(b"enemy")
PLACE = Place(GATEWAY, OWN, 4001, b"n" * pcp.NONCE_BYTES)
URL = f"http://{GATEWAY}:5000/rootDesc.xml"
OUTPUTS_MAX = 64
"""What a router can make us send in one search, whatever it answers to 40 times."""


@parser
def pcp_answer(data: bytes) -> None:
    """An answer by PCP, and the same bytes as one by NAT-PMP."""
    with contextlib.suppress(BadMessage):
        pcp.read_answer(data)
    with contextlib.suppress(BadMessage):
        nat_pmp.read_answer(data)


@parser
def upnp_answer(data: bytes) -> None:
    """An answer to a search: the address that it leads to is at the gateway."""
    with contextlib.suppress(BadMessage):
        url = upnp.read_search_answer(data, GATEWAY)
        assert upnp.checked_url(url, GATEWAY) == url


@parser
def upnp_description(data: bytes) -> None:
    """A device's description, and a reply to a call, in XML."""
    with contextlib.suppress(BadMessage):
        control = upnp.read_description(data, URL, GATEWAY)
        upnp.headers(control, "AddPortMapping")
        upnp.call_body(control, "AddPortMapping", upnp.add_arguments(OWN, 4001, 4001, 3600))
    for status in (200, 500):
        with contextlib.suppress(BadMessage, Refused):
            upnp.read_reply(status, data, "NewExternalIPAddress")


@parser
def lease_search(data: bytes) -> None:
    """A whole search: a part is a packet from a port of the router, or the reply to a call."""
    search = LeaseSearch(PLACE, bytes, itertools.count(1), 0.0)
    sent, calls = 0, [0]
    for at_s, piece in enumerate(itertools.islice(parts(data), 40)):
        kind, body = piece[:1], piece[1:]
        for output in search.drain():
            sent += 1
            if isinstance(output, CallRouter):
                calls.append(output.number)
        if kind < b"\x60":
            port = upnp.SEARCH_PORT if kind < b"\x30" else pcp.PORT
            search.on_datagram(body, Address(GATEWAY, port), at_s / 10)
        elif kind < b"\xc0":
            search.on_reply(calls[-1], 500 if kind < b"\x70" else 200, body, at_s / 10)
        else:
            search.on_deadline(at_s / 10)
    assert sent <= OUTPUTS_MAX


@parser
def observation(data: bytes) -> None:
    """Where a peer says that it sees a connection come from: read as it was written."""
    with contextlib.suppress(BadHandshake):
        seen = read_observation(data)
        assert seen == read_observation(observation_answer(seen.address, seen.seal))


@parser
def circuit_request(data: bytes) -> None:
    """What a connection asks of a relay, and what a relay answers."""
    with contextlib.suppress(BadHandshake):
        assert CircuitRequest.parse(data).raw == data
    with contextlib.suppress(BadHandshake, DialFailed):
        check_circuit_answer(data, "relay")


@parser
def card(data: bytes) -> None:
    """A card, and a card's body of somebody who signs what it likes; then who is believed."""
    with contextlib.suppress(BadMessage):
        cards.decode_card(data)
    with contextlib.suppress(BadMessage):
        body = decode(data)
        if isinstance(body, CardBody):
            with contextlib.suppress(ValueError):  # its own relay
                body = replace(body, public_key=ENEMY.public_key)
            raw = encode(body)
            found = cards.read(SignedCard(raw[:1024], ENEMY.sign(cards.TAG, raw[:1024])))
            assert cards.decode_card(found.data) == found
            us = [Address(OWN, 4001)]
            named = [Contact(found.peer, address) for address in found.addresses]
            for each in cards.believed(named, us, "5.5.5.1", Scope.PUBLIC):
                assert each.address not in us
            cards.believed([each.contact for each in found.relays], us, OWN, Scope.PRIVATE)


@parser
def directory(data: bytes) -> None:
    """A record of somebody who signs what it likes, and calls of a peer about a run's directory."""
    member = gossip_member("alice")
    for number, piece in enumerate(parts(data)):
        with contextlib.suppress(BadMessage):
            body = decode(piece)
            if isinstance(body, RecordBody):
                with contextlib.suppress(ValueError):  # its card is too long
                    signed = replace(body, card=CARD.signed, run=GOSSIP_RUN)
                    raw = encode(signed)
                    told = SignedRecord(raw, ENEMY.sign(records.TAG, raw))
                    made = records.RecordReader().read(told)
                    assert made.peer == ENEMY.peer_id
                    body = Deliver(GOSSIP_RUN, (AgedRecord(told, float(number)),))
            with contextlib.suppress(Busy):
                match body:
                    case Compare():
                        answer = member.on_compare(ENEMY.peer_id, body, float(number))
                        assert len(encode(answer)) < MESSAGE_BYTES_MAX
                    case Deliver():
                        member.on_deliver(ENEMY.peer_id, body, float(number))
                    case _:
                        member.on_answer(body, float(number))
        member.directory.on_deadline(float(number))
    assert len(member.directory) <= 2, "its own, and the one that it can replay"


LOCATION = f"HTTP/1.1 200 OK\r\nST: {upnp.TARGETS[0]}\r\nLOCATION: {URL}\r\n\r\n".encode()
DESCRIPTION = f"""<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><device><serviceList><service>
<serviceType>{upnp.SERVICES[0]}</serviceType><controlURL>/ctl/IPConn</controlURL>
</service></serviceList></device></root>""".encode()
RECORD = gossip_record("bob")
REPLY = b"<e><b><NewExternalIPAddress>5.5.5.1</NewExternalIPAddress></b></e>"
REFUSAL = (
    b"<e><errorCode>725</errorCode><errorDescription>OnlyPermanentLeases</errorDescription></e>"
)
MAPPED = bytes.fromhex("00810000000000010fa10fa100000e10")
PMP_HOST = bytes.fromhex("008000000000000105050501")
PCP_MAPPED = (
    bytes([2, 0x81, 0, 0])
    + (3600).to_bytes(4)
    + bytes(16)
    + PLACE.nonce
    + bytes([6, 0, 0, 0])
    + (4001).to_bytes(2) * 2
    + bytes(10)
    + b"\xff\xff\x05\x05\x05\x01"
)
PEER = Identity.generate(b"relay").peer_id
CARD = Card.make(
    ENEMY,
    7,
    [Address("203.0.113.7", 4000), Address("2001:db8::1", 4000), Address("host.example", 1)],
    mapped=[Address("198.51.100.1", 4001)],
    relays=[Contact(PEER, Address("203.0.113.9", 443))],
)
NAT_SEEDS = {
    "circuit_request": lambda: [
        CircuitRequest(peer=PEER.raw).raw,
        CircuitRequest(ticket=b"t" * 16).raw,
        *(circuit_answer(status) for status in CircuitStatus),
    ],
    "observation": lambda: [
        observation_answer(Address("203.0.113.7", 4001)),
        observation_answer(Address("2001:db8::7", 65535), b"s" * SEAL_BYTES),
    ],
    "directory": lambda: [
        joined(
            encode(Compare(GOSSIP_RUN, bytes(8), b"\xff" * 8, RECORD.entry * 3)),
            encode(RecordBody(GOSSIP_RUN, 5, 60, gossip_card("bob").signed, (SERVING,))),
            encode(Deliver(GOSSIP_RUN, (AgedRecord(RECORD.signed, 1.5),))),
            encode(Compared((AgedRecord(RECORD.signed, 1.5),), RECORD.prefix)),
        ),
    ],
    "card": lambda: [CARD.data, CARD.signed.body],
    "pcp_answer": lambda: [MAPPED, PMP_HOST, PCP_MAPPED, bytes([0, 0x81, 0, 3]) + bytes(4)],
    "upnp_answer": lambda: [LOCATION],
    "upnp_description": lambda: [DESCRIPTION, REPLY, REFUSAL],
    "lease_search": lambda: [
        joined(b"0" + PMP_HOST, b"0" + MAPPED),
        joined(b"0" + PCP_MAPPED),
        joined(
            b"\0" + LOCATION, b"\xff", b"\x80" + DESCRIPTION, b"\x80" + REPLY, b"\x60" + REFUSAL
        ),
    ],
}
