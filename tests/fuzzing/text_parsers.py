"""The parsers of messages, records and files, as functions of bytes.

A parser here returns for whatever bytes it is given: the errors that its module promises are
caught, and everything else is a finding. Where bytes are signed, the function signs them first: an
enemy has a key of its own.
"""

import contextlib
import importlib
import json
import pkgutil
import struct

from discovery.dht.harness import ALICE, CONFIG, KEY, NOW_MS, a_table, anywhere, record
from fuzzing.base import parser, parts
from run.chain.harness import RUN as CHAIN_RUN
from run.chain.harness import genesis

import p2pswarm.run.messages as run_messages
from p2pswarm.base.errors import (
    BadCheckpoint,
    BadMessage,
    OtherCheckpoint,
    PeerError,
    TooLarge,
    Unusable,
)
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.checkpoint import checkpoint_manifest
from p2pswarm.checkpoint.stage_file import LENGTH_BYTES, header_length, layout_in, tensors_in
from p2pswarm.discovery.dht.call_outcomes import CallRecorder, TimeoutEstimator
from p2pswarm.discovery.dht.get_value import NegativeCache
from p2pswarm.discovery.dht.messages import (
    Find,
    Get,
    Identify,
    PeerList,
    Ping,
    Record,
    Store,
    peers_in,
)
from p2pswarm.discovery.dht.records import RecordStore, SignatureCache
from p2pswarm.discovery.dht.responder import Responder
from p2pswarm.models.library.weight_files import header_bytes, joined, stored_tensors
from p2pswarm.net.cards.card import decode_card
from p2pswarm.net.cards.card_book import CardBook
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Hello, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.rpc import framing
from p2pswarm.net.rpc.framing import Assembly
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.chain.chain import Chain
from p2pswarm.run.chain.chain_log import HEADER_BYTES, LogReader, read_header, restore
from p2pswarm.run.chain.record import CommitRecord, authentic, digest, sign
from p2pswarm.run.manifest import MANIFEST_TAG, read_offer, signed_part
from p2pswarm.run.messages.run import Manifest
from p2pswarm.run.state.partial_state import SLOT_HEAD_BYTES, slot_hash, slot_version
from p2pswarm.settings.parser import run_from_json
from p2pswarm.tensors.codecs.meta import Dtype, TensorMeta, layout
from p2pswarm.tensors.codecs.registry import BY_CODE, decoder

for _module in pkgutil.iter_modules(run_messages.__path__):  # so that `decode` knows every code
    importlib.import_module(f"{run_messages.__name__}.{_module.name}")
importlib.import_module("p2pswarm.run.chain.messages")

ENEMY = Identity.generate(b"enemy")
NETWORK = TransportConfig().network_id
HELLO = Hello(Suite.AES_GCM, NETWORK)
OURS, THEIRS = StaticKey(ALICE, b"s" * 32), StaticKey(ENEMY, b"t" * 32)
NEAR_KEY = b"k" * 32
TENSOR_BYTES_MAX = 1 << 20
"""A fuzzer's announcement is decoded if it is smaller: memory is the budget's subject."""

# messages


@parser
def message(data: bytes) -> None:
    """Any message: what is read can be written, and is read again as the same."""
    with contextlib.suppress(BadMessage):
        told = decode(data)
        again = encode(told)
        assert encode(decode(again)) == again


@parser
def opening(data: bytes) -> None:
    """The first frame of a stream."""
    with contextlib.suppress(BadMessage):
        framing.unpack_opening(data)


@parser
def long_message(data: bytes) -> None:
    """The frames of messages that are longer than one, where a frame has 16 bytes."""
    assembly, head = Assembly(frame_bytes=16), True
    with contextlib.suppress(BadMessage):
        for frame in parts(data):
            if head and frame[:1] == framing.LONG:
                framing.unpack_deadline(frame)
                assembly.begin(frame, framing.OPENING_BYTES)
            elif (whole := assembly.add(frame)) is not None:
                decode(whole.body)
            head = False


@parser
def reply(data: bytes) -> None:
    """A later frame of a stream, good or an error."""
    with contextlib.suppress(BadMessage):
        if framing.is_good(data):
            framing.unpack_good(data)
        else:
            encode(framing.failure_of(framing.unpack_error(data)))


@parser
def tensor_meta(data: bytes) -> None:
    """An announcement and, if it is small, what its inline bytes decode to."""
    with contextlib.suppress(BadMessage, TooLarge):
        meta = decode(data)
        if isinstance(meta, TensorMeta) and layout(meta).raw_bytes <= TENSOR_BYTES_MAX:
            place = decoder(meta, key=bytes(8)) if meta.encoded_bytes <= TENSOR_BYTES_MAX else None
            if place is not None:
                place.finish()


@parser
def codec(data: bytes) -> None:
    """The encoded bytes of a tensor: codec, dtype, two dimensions, then bytes."""
    if len(data) < 5:
        return
    codes, dtypes = sorted(BY_CODE), list(Dtype)
    code, dtype = codes[data[0] % len(codes)], dtypes[data[1] % len(dtypes)]
    shape, encoded = (data[2], data[3] % 16), data[4:]
    with contextlib.suppress(BadMessage, TooLarge):
        place = decoder(TensorMeta(dtype, shape, code, len(encoded)), key=bytes(8))
        place.buffer[:] = encoded
        tensor = place.finish()
        assert tuple(tensor.shape) == shape


@parser
def dht_request(data: bytes) -> None:
    """Requests to one node of the DHT, a part each, and the bytes of its answers."""
    table = a_table(5, 4, 3)
    store = RecordStore(CONFIG, SignatureCache())
    store.offer(record(), ALICE.peer_id, NOW_MS)
    cards = CardBook(PeerId(KEY))
    recorder = CallRecorder(table, TimeoutEstimator(CONFIG), anywhere, cards)
    node = Responder(PeerId(KEY), table, store, recorder, NegativeCache(8, 5.0), cards)
    for now_s, piece in enumerate(parts(data)):
        with contextlib.suppress(BadMessage):
            request = decode(piece)
            if isinstance(request, Identify | Find | Get | Store | Ping):
                peer = ENEMY.peer_id if now_s % 2 else ALICE.peer_id
                encode(node.answer(peer, request, float(now_s), NOW_MS + 1000 * now_s))
        store.prove()


@parser
def dht_answer(data: bytes) -> None:
    """Contacts and records that a peer hands out."""
    with contextlib.suppress(BadMessage):
        told = decode(data)
        packed = told if isinstance(told, PeerList) else getattr(told, "peer_list", None)
        if packed is not None:
            for named, card in peers_in(packed, decode_card):
                assert named.address in card.addresses
        found = told if isinstance(told, Record) else None
        for each in getattr(told, "records", (found,)):
            if isinstance(each, Record):
                SignatureCache().holds(each)


# files and signed texts


@parser
def manifest(data: bytes) -> None:
    """A run's manifest of somebody who signs what it likes."""
    with contextlib.suppress(BadMessage):
        told = decode(data)
        if not isinstance(told, Manifest):
            return
        with contextlib.suppress(BadMessage):
            read_offer(told)
        unsigned = Manifest(
            told.config,
            told.corpus,
            told.nonce,
            told.founder,
            ENEMY.public_key,
            told.address,
            b"",
            told.origin,
        )
        signature = ENEMY.sign(MANIFEST_TAG, signed_part(unsigned))
        values = {name: getattr(unsigned, name) for name in Manifest.__slots__}
        read_offer(Manifest(**{**values, "signature": signature}))


@parser
def run_config(data: bytes) -> None:
    """The JSON in a manifest."""
    with contextlib.suppress(BadMessage):
        run_from_json(data)


@parser
def chain_record(data: bytes) -> None:
    """A record of the chain, also signed by somebody who may not; then the chain's rules."""
    with contextlib.suppress(PeerError):
        told = decode(data)
        if isinstance(told, CommitRecord):
            authentic(told)
            digest(told)
            with contextlib.suppress(ValueError):  # too large to be written
                told = sign(told, ALICE)
            Chain(genesis()).append(told)


@parser
def chain_log(data: bytes) -> None:
    """A file of promises and records."""
    with contextlib.suppress(Unusable, PeerError):
        read_header(data, CHAIN_RUN, "file")
        reader = LogReader("file")
        entries = list(reader.feed(data[HEADER_BYTES:]))
        reader.finish()
        restore(genesis(), iter(entries), "file")


@parser
def checkpoint(data: bytes) -> None:
    """A checkpoint's manifest, as it is and signed by somebody who signs what it likes."""
    with contextlib.suppress(BadCheckpoint, OtherCheckpoint):
        checkpoint_manifest.read(data)
    with contextlib.suppress(BadCheckpoint, OtherCheckpoint, ValueError, RecursionError):
        body = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
        signature = ENEMY.sign(checkpoint_manifest.TAG, body).hex()
        key = ENEMY.public_key.hex()
        end = f',"public_key":"{key}","signature":"{signature}"}}'.encode()
        resigned = b'{"manifest":' + body + end
        _ = checkpoint_manifest.read(resigned).manifest.id()


@parser
def stage_file(data: bytes) -> None:
    """The header of a stage's file."""
    with contextlib.suppress(BadCheckpoint, OtherCheckpoint):
        length = header_length(data[:LENGTH_BYTES], len(data))
        layout_in(tensors_in(data[:length], len(data)))
    header = struct.pack("<Q", len(data)) + data
    with contextlib.suppress(BadCheckpoint, OtherCheckpoint):
        layout_in(tensors_in(header, len(header) + 48))


@parser
def published_header(data: bytes) -> None:
    """The header of a published file of weights."""
    for first, header in ((data[:8], data[8:]), (len(data).to_bytes(8, "little"), data)):
        size = 8 + len(header) + 48
        with contextlib.suppress(ValueError):
            length = header_bytes(first, size)
            joined(stored_tensors(header[:length], size).items())


@parser
def partial_slot(data: bytes) -> None:
    """A newcomer's slot on a disk."""
    head, piece = data[:SLOT_HEAD_BYTES], data[SLOT_HEAD_BYTES:]
    if slot_version(head) is not None:
        slot_hash(head, piece)


@parser
def address(data: bytes) -> None:
    """Texts of addresses and ids: what is read is written so that it is read again."""
    text = data.decode(errors="replace")
    with contextlib.suppress(ValueError):
        found = Address.parse(text)
        assert Address.parse(str(found)) == found
    with contextlib.suppress(ValueError):
        peer = PeerId.parse(text)
        assert PeerId.parse(str(peer)) == peer
