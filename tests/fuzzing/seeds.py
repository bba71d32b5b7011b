"""Valid inputs of every parser: a fuzzer begins with what the program itself writes."""

import json
from collections.abc import Callable

import torch
from checkpoint.harness import RUN
from checkpoint.test_checkpoint_manifest import DATA as CHECKPOINT
from discovery.dht.harness import ALICE, KEY, record
from fuzzing.access_parsers import ACCESS_SEEDS
from fuzzing.base import joined
from fuzzing.data_parsers import DATA_SEEDS
from fuzzing.examples import examples
from fuzzing.file_parsers import FILE_SEEDS
from fuzzing.link_parsers import HELLO, NETWORK
from fuzzing.model_parsers import MODEL_SEEDS
from fuzzing.nat_parsers import NAT_SEEDS
from run.chain.harness import RUN as CHAIN_RUN
from run.chain.harness import genesis, unsigned

from p2pswarm.base.errors import Busy
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.messages import (
    Find,
    Found,
    Get,
    Got,
    Identified,
    Identify,
    PeerList,
    Ping,
    Store,
)
from p2pswarm.net.cards.card import Card
from p2pswarm.net.cards.node_cards import CardUpdate
from p2pswarm.net.crypto.handshake import Handshake, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.endpoint.link_request import JOIN, BulkJoin
from p2pswarm.net.link.session import Introduction
from p2pswarm.net.rpc.framing import Kind, pack_error, pack_good, pack_opening
from p2pswarm.net.wire import frames
from p2pswarm.net.wire.message import encode
from p2pswarm.run.chain.chain_log import log_entry, log_header
from p2pswarm.run.chain.record import sign
from p2pswarm.run.manifest import RunIdentity, sign_manifest
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.run.state.partial_state import slot_head
from p2pswarm.settings.parser import run_to_json
from p2pswarm.tensors.codecs.base import DTYPES
from p2pswarm.tensors.codecs.registry import CODECS
from p2pswarm.tensors.codecs.registry import encode as encode_tensor

Seeds = list[bytes]
BRIEF = record(seq=2, ttl_ms=100)
SIGNED = record(b"value", subkey=b"subkey")
CARD = Card.make(
    ALICE,
    7,
    [Address("2600::1", 4000), Address("8.8.8.8", 4000)],
    relays=[Contact(PeerId(b"r" * 32), Address("9.9.9.9", 443))],
).data
PEERS = PeerList((CARD, CARD), b"\0\1")
INTRODUCTION = encode(Introduction(b"i" * 16, 4001, "203.0.113.7", CARD))
CONFIG_JSON = run_to_json(RUN)
RECORD = sign(unsigned(genesis().head(), 1), Identity.generate(b"a"))


def handshake(role: Role) -> bytes:
    """What one side of a handshake sends first; the other has no key of ours."""
    bare = Handshake(role, HELLO, StaticKey(ALICE, b"o" * 32), b"p" * 32, INTRODUCTION)
    return b"".join(bare.data_to_send())


def responder_says() -> bytes:
    """The answer to the first message of the parser's own dialler."""
    ours = Handshake(Role.INITIATOR, HELLO, StaticKey(ALICE, b"s" * 32), b"e" * 32)
    theirs = Handshake(Role.RESPONDER, HELLO, StaticKey(ALICE, b"o" * 32), b"p" * 32, INTRODUCTION)
    theirs.receive(b"".join(ours.data_to_send())[len(HELLO.raw) :])
    return b"".join(theirs.data_to_send())


def link_records() -> Seeds:
    opened = frames.encode(frames.OPEN, 1, b"hello", frames.END)
    whole = frames.encode(frames.OPEN, 3, b"r", 0, 2) + frames.encode(frames.DATA, 3, b"more", 1)
    credit = frames.encode(frames.CREDIT, 0, frames.NUMBER.pack(1000))
    reset = frames.encode(frames.RESET, 1, frames.NUMBER.pack(16))
    link = frames.encode(frames.PING, 0, b"12345678") + frames.encode(frames.GOAWAY, 0)
    bulk = frames.encode(frames.ASK_BULK, 0) + frames.encode(frames.PONG, 0, bytes(8))
    ours = frames.encode(frames.DATA, 2, b"answer", frames.END)
    again = frames.encode(frames.OPEN, 1, b"", frames.END)
    told = frames.encode(frames.BULK_DONE, 0, frames.TRANSFER.pack(7))
    told += frames.encode(frames.BULK_CAME, 0, frames.CHANNEL.pack(1, 9))
    told += frames.encode(frames.BULK_OVER, 0, frames.CHANNEL.pack(1, 9))
    told += frames.encode(frames.ALTERED, 0, frames.NUMBER.pack(0))
    close = frames.encode(frames.CLOSE, 0, frames.BAN.pack(0, 60))
    return [
        joined(told, bulk + told, close),
        joined(opened),
        joined(opened, again),
        joined(whole, credit + reset, link),
        joined(opened + whole, bulk, ours),
        joined(b"\xff" + bytes(30)),
    ]


ROUNDING_KEY = bytes(8)


def tensors() -> Seeds:
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    found = []
    for codec in CODECS:
        dtypes = [DTYPES_OF[kind] for kind in sorted(codec.dtypes)[:2]]
        found += [
            encode(encode_tensor(values.to(dtype), codec.name, key=ROUNDING_KEY).meta)
            for dtype in dtypes
        ]
    return found


def encoded_tensors() -> Seeds:
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    codes = sorted(codec.code for codec in CODECS)
    found = []
    for codec in CODECS:
        for kind in sorted(codec.dtypes)[:2]:
            made = encode_tensor(values.to(DTYPES_OF[kind]), codec.name, key=ROUNDING_KEY)
            head = bytes([codes.index(codec.code), list(type(kind)).index(kind), 2, 3])
            found.append(head + bytes(made.data))
    return found


DTYPES_OF = {kind: dtype for dtype, kind in DTYPES.items()}


def stage_header() -> bytes:
    entries = {}
    at = 0
    for kind in ("", "exp_avg.", "exp_avg_sq."):
        entries[f"{kind}w"] = {"dtype": "F32", "shape": [2, 2], "data_offsets": [at, at + 16]}
        at += 16
    return json.dumps(entries).encode()


def manifests() -> Seeds:
    address = Address("203.0.113.7", 4000)
    run = RunIdentity(RUN, b"c" * 32, b"n" * 16, ALICE.peer_id.raw)
    origin = RunOrigin(b"r" * 16, 7, b"m" * 32)
    later = RunIdentity(RUN, b"c" * 32, b"n" * 16, ALICE.peer_id.raw, origin)
    return [encode(sign_manifest(ALICE, each, address)) for each in (run, later)]


def chain_logs() -> Seeds:
    head = log_header(CHAIN_RUN, b"m" * 8)
    return [head, head + log_entry(RECORD), head + log_entry(RECORD)[:-3]]


def long_messages() -> Seeds:
    """A record in frames of 16 bytes, as a reply, and as a request in its first one."""
    body = encode(RECORD)
    rows = [body[at : at + 15] for at in range(0, len(body), 15)]
    reply = [b"\xff" + row for row in rows[:-1]] + [b"\0" + rows[-1]]
    first, rest = body[:11], body[11:]
    later = [rest[at : at + 15] for at in range(0, len(rest), 15)]
    request = [b"\3" + bytes(4) + first, *(b"\xff" + row for row in later[:-1])]
    return [joined(*reply), joined(*request, b"\0" + later[-1])]


def messages() -> Seeds:
    return [
        INTRODUCTION,
        encode(CardUpdate(CARD)),
        encode(Find(KEY)),
        encode(Got((SIGNED,), False, PEERS)),
        encode(RECORD),
        *manifests()[:1],
        *examples(),
    ]


STAGE = stage_header()
PEER = str(ALICE.peer_id).encode()
SEEDS: dict[str, Callable[[], Seeds]] = {
    "frame_buffer": lambda: [
        joined(b"\0\0\0\x10" + bytes(16)),
        joined(b"\0\0", b"\0\x11", bytes(17) + b"\x80\0\0\x10", bytes(16)),
    ],
    "accepted": lambda: [
        handshake(Role.INITIATOR),
        BulkJoin.make(JOIN, b"x" * 32, 1, b"n" * 16).raw,
        b"PSW2" + bytes(17),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    "dialled": lambda: [responder_says(), HELLO.raw, b"PSW1\1" + NETWORK, b"PSW2\7" + NETWORK],
    "identity_proof": lambda: [b"\x60" + INTRODUCTION, b"\x60", b"\x20" + bytes(64)],
    "introduction": lambda: [INTRODUCTION, encode(Introduction(b"i" * 16, 0, "", CARD))],
    "bulk_join": lambda: [BulkJoin.make(JOIN, b"x" * 32, 1, b"n" * 16).raw[4:] + bytes(32)],
    "records": lambda: [joined(b"\0plain", b"\0more" * 20, b"\0"), joined(b"\0plain", b"\xff\1\1")],
    "mux": link_records,
    "link": link_records,
    "bulk_chunks": lambda: [
        joined(
            (1).to_bytes(8) + bytes(8) + (0x4000).to_bytes(4),
            (1).to_bytes(8) + (0x4000).to_bytes(8) + (0x4000).to_bytes(4),
        ),
        joined((3).to_bytes(8) + bytes(8) + (1).to_bytes(4)),
    ],
    "message": messages,
    "opening": lambda: [
        pack_opening(Kind.UNARY, 1.0, encode(Ping())),
        pack_opening(Kind.STREAM, None, encode(Find(KEY))),
    ],
    "long_message": long_messages,
    "reply": lambda: [*pack_good(Ping()), pack_error(Busy("full", 0.5))],
    "tensor_meta": tensors,
    "codec": encoded_tensors,
    "dht_request": lambda: [
        joined(encode(Identify(KEY)), encode(Ping()), encode(Find(KEY))),
        joined(encode(Store((SIGNED,))), encode(Get(KEY, b"", True, 2))),
        joined(encode(Store((record(seq=2, ttl_ms=100),))), encode(Get(KEY, b"a", False, 0))),
    ],
    "dht_answer": lambda: [
        encode(Identified(b"p" * 32, PEERS)),
        encode(Found(PEERS)),
        encode(Got((SIGNED,), True, PEERS)),
        encode(SIGNED),
        encode(PEERS),
    ],
    "manifest": manifests,
    "run_config": lambda: [CONFIG_JSON, b'{"version":2}'],
    "chain_record": lambda: [encode(RECORD)],
    "chain_log": chain_logs,
    "checkpoint": lambda: [CHECKPOINT, json.dumps(json.loads(CHECKPOINT)["manifest"]).encode()],
    "stage_file": lambda: [
        stage_header(),
        len(stage_header()).to_bytes(8, "little") + stage_header(),
    ],
    "published_header": lambda: [
        stage_header(),
        len(stage_header()).to_bytes(8, "little") + stage_header(),
    ],
    "partial_slot": lambda: [slot_head(7, memoryview(b"piece")) + b"piece", bytes(40)],
    "address": lambda: [
        b"203.0.113.7:4000",
        b"[fe80::1%eth0]:1",
        b"host.example:65535",
        b"wss://h.example:443",
        b"192.0.2.1:1/" + PEER,
        str(ALICE.peer_id).encode(),
    ],
    **NAT_SEEDS,
    **DATA_SEEDS,
    **FILE_SEEDS,
    **MODEL_SEEDS,
    **ACCESS_SEEDS,
}
"""By parser: inputs that it reads to their end."""
