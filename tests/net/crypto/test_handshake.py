"""The handshake: who is met, and that nobody in between can change or learn anything."""

import contextlib
from collections.abc import Iterator
from itertools import pairwise

import pytest
from core import core_of
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadHandshake, BadRecord
from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.handshake import (
    HELLO_BYTES,
    MAGIC,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    Handshake,
    Hello,
    StaticKey,
)
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import NoiseXX, Role
from p2pswarm.net.crypto.records import PREFIX_BYTES, Opener, Sealer
from p2pswarm.net.crypto.suite import Suite

NETWORK = b"network sixteen!"
ALICE = Identity.generate(b"alice")
BOB = Identity.generate(b"bob")
MALLORY = Identity.generate(b"mallory")
FROM_ALICE, FROM_BOB = b"my port is 4001", b"yours looks like 203.0.113.9"
SECRET = b"the weights of layer one"


def dialer(
    suite: Suite = Suite.AES_GCM, expect: PeerId | None = BOB.peer_id, payload: bytes = FROM_ALICE
) -> Handshake:
    static = StaticKey(ALICE, b"1" * 32)
    hello = Hello(suite, NETWORK)
    return Handshake(Role.INITIATOR, hello, static, b"2" * 32, payload, expect=expect)


def listener(
    hello: bytes, static: StaticKey | None = None, ephemeral: bytes = b"4" * 32
) -> Handshake:
    static = static or StaticKey(BOB, b"3" * 32)
    return Handshake(Role.RESPONDER, Hello.parse(hello, NETWORK), static, ephemeral, FROM_BOB)


def sent(side: Handshake) -> bytes:
    return b"".join(side.data_to_send())


def meet(
    suite: Suite = Suite.AES_GCM, static: StaticKey | None = None
) -> tuple[Handshake, Handshake]:
    """Both sides, the handshake done."""
    alice = dialer(suite)
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES], static)
    bob.receive(first[HELLO_BYTES:])
    alice.receive(sent(bob))
    bob.receive(sent(alice))
    return alice, bob


class Wire:
    """Carries bytes and flips one bit of all that it ever carries."""

    def __init__(self, flipped_bit: int) -> None:
        self._bit = flipped_bit
        self.carried = 0

    def __call__(self, data: bytes) -> bytes:
        at = self._bit // 8 - self.carried
        self.carried += len(data)
        if not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ 1 << self._bit % 8]) + data[at + 1 :]


def conversation(wire: Wire, suite: Suite = Suite.AES_GCM) -> Iterator[bytes]:
    """A handshake and a record each way over `wire`; yields what surfaces at either end."""
    alice = dialer(suite)
    first = wire(sent(alice))
    bob = listener(first[:HELLO_BYTES])
    bob.receive(first[HELLO_BYTES:])
    alice.receive(wire(sent(bob)))
    if alice.done:
        yield alice.result.payload
    bob.receive(wire(sent(alice)))
    if not bob.done or not alice.done:
        return  # a length was made longer: this side waits until its deadline
    yield bob.result.payload
    for sender, receiver in ((alice, bob), (bob, alice)):
        record = wire(Sealer(sender.result.keys.send_key, suite, b"ctl0").seal(SECRET))
        opener = Opener(receiver.result.keys.receive_key, suite, b"ctl0")
        yield opener.open(record[PREFIX_BYTES:], record[:PREFIX_BYTES])


ALL_THAT_SURFACES = [FROM_BOB, FROM_ALICE, SECRET, SECRET]


def transcript_bits() -> int:
    wire = Wire(-8)
    assert list(conversation(wire)) == ALL_THAT_SURFACES
    return 8 * wire.carried


@pytest.mark.parametrize("suite", list(Suite))
def test_both_sides_end_with_the_same_keys_and_know_each_other(suite: Suite):
    alice, bob = meet(suite)

    assert alice.done
    assert bob.done
    assert alice.result.keys.send_key == bob.result.keys.receive_key
    assert alice.result.keys.receive_key == bob.result.keys.send_key
    assert alice.result.keys.send_key != alice.result.keys.receive_key
    assert alice.result.keys.suite is bob.result.keys.suite is suite
    assert alice.result.exporter == bob.result.exporter
    assert (alice.result.peer, bob.result.peer) == (BOB.peer_id, ALICE.peer_id)
    assert (alice.result.payload, bob.result.payload) == (FROM_BOB, FROM_ALICE)


def test_two_sessions_share_no_key():
    one, _ = meet()
    alice = dialer()
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES], ephemeral=b"5" * 32)
    bob.receive(first[HELLO_BYTES:])
    alice.receive(sent(bob))

    secrets = [{*side.result.keys[:2], side.result.exporter} for side in (one, alice)]
    assert secrets[0].isdisjoint(secrets[1])


@pytest.mark.parametrize("part", core_of(range(8), [0, 5]))
def test_bit_flipped_anywhere_ends_the_conversation(part: int):
    """Every bit of hello, handshake and records; before the flip all is well, after it nothing."""
    for bit in range(part, transcript_bits(), 8):
        surfaced = []
        refused = False

        try:
            for plaintext in conversation(Wire(bit)):
                surfaced.append(plaintext)  # noqa: PERF402
        except (BadHandshake, BadRecord):
            refused = True

        assert surfaced == ALL_THAT_SURFACES[: len(surfaced)]
        assert len(surfaced) < len(ALL_THAT_SURFACES)
        assert refused or len(surfaced) < 2, "only a handshake may wait for more"


@given(cuts=st.lists(st.integers(0, 600), max_size=12))
def test_stream_may_be_cut_anywhere(cuts: list[int]):
    alice = dialer()
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES])

    def feed(side: Handshake, data: bytes) -> None:
        for start, end in pairwise([0, *sorted(cuts), len(data) + 600]):
            side.receive(memoryview(data)[start:end])

    feed(bob, first[HELLO_BYTES:])
    feed(alice, sent(bob))
    feed(bob, sent(alice))

    assert alice.result.keys.send_key == bob.result.keys.receive_key


def test_a_message_after_the_last_one_ends_the_handshake():
    alice = dialer()
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES])
    bob.receive(first[HELLO_BYTES:])
    alice.receive(sent(bob))

    with pytest.raises(BadHandshake, match="last message"):
        bob.receive(sent(alice) + b"\0\1x")


def test_dialer_that_meets_somebody_else_does_not_show_who_it_is():
    alice = dialer(expect=MALLORY.peer_id)
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES])
    bob.receive(first[HELLO_BYTES:])

    with pytest.raises(BadHandshake, match=str(BOB.peer_id)):
        alice.receive(sent(bob))

    assert alice.data_to_send() == []
    assert not alice.done
    with pytest.raises(BadHandshake):
        alice.receive(b"but wait")


def test_dialer_may_expect_nobody_in_particular():
    alice = dialer(expect=None)
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES])
    bob.receive(first[HELLO_BYTES:])
    alice.receive(sent(bob))

    assert alice.result.peer == BOB.peer_id


def test_key_signed_by_another_identity_is_refused():
    """Mallory shows Bob's key with a signature of her own."""
    static = StaticKey(MALLORY, b"3" * 32)
    static.proof = BOB.public_key + static.proof[32:]

    with pytest.raises(BadHandshake, match="does not belong"):
        meet(static=static)


def test_proof_of_another_static_key_is_refused():
    """Mallory shows the proof that Bob gave of his key, and uses her own."""
    static = StaticKey(BOB, b"3" * 32)
    static.private = b"9" * 32

    with pytest.raises(BadHandshake, match="does not belong"):
        meet(static=static)


def test_payload_too_short_for_a_proof_is_refused():
    static = StaticKey(BOB, b"3" * 32)
    static.proof = b""

    with pytest.raises(BadHandshake, match="does not belong"):
        meet(static=static)


def test_handshake_replayed_to_another_session_is_refused():
    alice = dialer()
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES])
    bob.receive(first[HELLO_BYTES:])
    alice.receive(sent(bob))
    last = sent(alice)

    again = listener(first[:HELLO_BYTES], ephemeral=b"6" * 32)
    again.receive(first[HELLO_BYTES:])

    with pytest.raises(BadHandshake):
        again.receive(last)


def test_handshake_accepts_nothing_after_a_failure():
    alice = dialer()
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES])
    bob.receive(first[HELLO_BYTES:])
    answer = sent(bob)
    with pytest.raises(BadHandshake):
        alice.receive(answer[:-1] + bytes([answer[-1] ^ 1]))

    with pytest.raises(BadHandshake):
        alice.receive(answer)
    assert not alice.done


def test_first_message_may_carry_nothing():
    """There is no key yet: what came with it, anybody may have written."""
    xx = NoiseXX(Role.INITIATOR, Suite.AES_GCM, b"1" * 32, b"2" * 32, b"")
    message = xx.write(b"anything")
    bob = listener(Hello(Suite.AES_GCM, NETWORK).raw)

    with pytest.raises(BadHandshake):
        bob.receive(len(message).to_bytes(2) + message)


@pytest.mark.parametrize("length", [0, MESSAGE_BYTES_MAX + 1, 0xFFFF])
def test_message_over_the_limit_is_refused_before_it_comes(length: int):
    bob = listener(Hello(Suite.AES_GCM, NETWORK).raw)

    with pytest.raises(BadHandshake):
        bob.receive(length.to_bytes(2))


def test_longest_payload_fits_and_a_byte_more_is_our_own_mistake():
    payload = bytes(PAYLOAD_BYTES_MAX)
    alice = dialer(payload=payload)
    first = sent(alice)
    bob = listener(first[:HELLO_BYTES])
    bob.receive(first[HELLO_BYTES:])
    alice.receive(sent(bob))
    bob.receive(sent(alice))

    assert bob.result.payload == payload
    with pytest.raises(ValueError, match="payload"):
        dialer(payload=payload + b"x")


def test_nothing_of_a_session_is_told_before_the_handshake_is_done():
    alice = dialer()

    with pytest.raises(ValueError, match="not done"):
        _ = alice.result


@given(data=st.binary(max_size=400))
def test_listener_meets_garbage_with_one_error(data: bytes):
    bob = listener(Hello(Suite.AES_GCM, NETWORK).raw)
    with contextlib.suppress(BadHandshake):
        bob.receive(data)

    assert not bob.done


@given(data=st.binary(max_size=400))
def test_dialer_meets_garbage_with_one_error(data: bytes):
    alice = dialer()
    with contextlib.suppress(BadHandshake):
        alice.receive(data)

    assert not alice.done


@pytest.mark.parametrize("suite", list(Suite))
def test_hello_survives_the_wire(suite: Suite):
    hello = Hello(suite, NETWORK)

    assert Hello.parse(hello.raw, NETWORK) == hello
    assert len(hello.raw) == HELLO_BYTES


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "does not speak our protocol"),
        (b"GET / HTTP/1.1\r\nHost", "does not speak our protocol"),
        (MAGIC + b"\x01" + NETWORK[:-1], "does not speak our protocol"),
        (MAGIC + b"\x01" + NETWORK + b"x", "does not speak our protocol"),
        (MAGIC + b"\x00" + NETWORK, "cipher 0"),
        (MAGIC + b"\x03" + NETWORK, "cipher 3, which we do not know; install the same release"),
        (b"PSW1\x01" + NETWORK, "version 1, we 2; install the same release on both sides"),
        (b"PSW\n\x01" + NETWORK, "version 0x0a, we 2"),
        (b"PSW\xff\x01" + NETWORK, "version 0xff, we 2"),
    ],
)
def test_hello_of_another_protocol_or_version_says_which(raw: bytes, why: str):
    with pytest.raises(BadHandshake, match=why):
        Hello.parse(raw, NETWORK)


def test_hello_of_another_network_is_refused():
    with pytest.raises(BadHandshake, match="another network"):
        Hello.parse(Hello(Suite.AES_GCM, b"network sixteen?").raw, NETWORK)


def test_network_id_of_another_length_is_our_own_mistake():
    with pytest.raises(ValueError, match="not 3"):
        Hello(Suite.AES_GCM, b"net")
