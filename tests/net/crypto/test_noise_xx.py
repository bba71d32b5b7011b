"""Noise XX, word for word: the public vectors run through it unchanged."""

import json
from pathlib import Path

import pytest
from net.crypto.harness import with_short_key

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.crypto.noise_xx import NoiseXX, Role
from p2pswarm.net.crypto.suite import Suite

GOLDEN = Path(__file__).parents[2] / "golden" / "noise_xx_25519_sha256.json"
VECTORS = {vector["name"]: vector for vector in json.loads(GOLDEN.read_text())["vectors"]}
LOW_ORDER_KEYS = [bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")]


def pair(suite: Suite = Suite.AES_GCM) -> tuple[NoiseXX, NoiseXX]:
    initiator = NoiseXX(Role.INITIATOR, suite, b"a" * 32, b"b" * 32, b"prologue")
    responder = NoiseXX(Role.RESPONDER, suite, b"c" * 32, b"d" * 32, b"prologue")
    return initiator, responder


@pytest.mark.parametrize("suite", list(Suite))
def test_public_vectors_are_reproduced_byte_for_byte(suite: Suite):
    vector = VECTORS[suite.noise_name.decode()]
    sides = [
        NoiseXX(
            role,
            suite,
            bytes.fromhex(vector[f"{name}_static"]),
            bytes.fromhex(vector[f"{name}_ephemeral"]),
            bytes.fromhex(vector[f"{name}_prologue"]),
        )
        for role, name in ((Role.INITIATOR, "init"), (Role.RESPONDER, "resp"))
    ]
    messages = [
        (bytes.fromhex(m["payload"]), bytes.fromhex(m["ciphertext"])) for m in vector["messages"]
    ]

    for number, (payload, ciphertext) in enumerate(messages[:3]):
        assert sides[number % 2].write(payload) == ciphertext
        assert sides[1 - number % 2].read(ciphertext) == payload

    assert sides[0].split() == sides[1].split()
    assert sides[0].hash == sides[1].hash
    split = sides[0].split()
    ciphers = [suite.aead(split.initiator_key), suite.aead(split.responder_key)]
    byteorder = "big" if suite is Suite.AES_GCM else "little"
    for number, (payload, ciphertext) in enumerate(messages[3:], start=3):
        nonce = bytes(4) + ((number - 3) // 2).to_bytes(8, byteorder)
        assert ciphers[number % 2].encrypt(nonce, payload, b"") == ciphertext


def test_exporter_is_a_third_key_and_not_one_of_the_two():
    initiator, responder = pair()
    for _ in range(3):
        writer, reader = (initiator, responder) if initiator.my_turn else (responder, initiator)
        reader.read(writer.write(b""))

    split = initiator.split()

    assert len({split.initiator_key, split.responder_key, split.exporter}) == 3


def test_each_side_learns_the_others_static_key():
    initiator, responder = pair()

    responder.read(initiator.write(b""))
    assert responder.remote_static == b""
    initiator.read(responder.write(b""))
    responder.read(initiator.write(b""))

    assert len(initiator.remote_static) == len(responder.remote_static) == 32
    assert initiator.done
    assert responder.done
    assert not initiator.my_turn


def test_another_prologue_is_refused():
    initiator, _ = pair()
    responder = NoiseXX(Role.RESPONDER, Suite.AES_GCM, b"c" * 32, b"d" * 32, b"another")
    responder.read(initiator.write(b""))

    with pytest.raises(BadHandshake):
        initiator.read(responder.write(b""))


def test_another_suite_is_refused():
    initiator, _ = pair()
    _, responder = pair(Suite.CHACHA20_POLY1305)
    responder.read(initiator.write(b""))

    with pytest.raises(BadHandshake):
        initiator.read(responder.write(b""))


@pytest.mark.parametrize("length", [0, 1, 31])
def test_first_message_without_a_whole_key_is_refused(length: int):
    _, responder = pair()

    with pytest.raises(BadHandshake):
        responder.read(bytes(length))


@pytest.mark.parametrize("length", [0, 32, 33, 79, 80, 95])
def test_second_message_cut_short_is_refused(length: int):
    initiator, responder = pair()
    responder.read(initiator.write(b""))
    message = responder.write(b"")

    with pytest.raises(BadHandshake):
        initiator.read(message[:length])


@pytest.mark.parametrize("key", LOW_ORDER_KEYS)
def test_initiators_key_of_low_order_is_refused(key: bytes):
    """Such a key makes the shared secret zero, whoever holds the other one."""
    _, responder = pair()
    responder.read(key)

    with pytest.raises(BadHandshake):
        responder.write(b"")


@pytest.mark.parametrize("key", LOW_ORDER_KEYS)
def test_responders_key_of_low_order_is_refused(key: bytes):
    initiator, responder = pair()
    responder.read(initiator.write(b""))
    message = responder.write(b"")

    with pytest.raises(BadHandshake):
        initiator.read(key + message[32:])


def test_speaking_out_of_turn_is_our_own_mistake():
    initiator, responder = pair()

    with pytest.raises(ValueError, match="peer's turn"):
        responder.write(b"")
    with pytest.raises(ValueError, match="our turn"):
        initiator.read(bytes(32))
    with pytest.raises(ValueError, match="not done"):
        initiator.split()


def test_finished_handshake_neither_reads_nor_writes():
    initiator, responder = pair()
    responder.read(initiator.write(b""))
    initiator.read(responder.write(b""))
    message = initiator.write(b"")
    responder.read(message)

    with pytest.raises(ValueError, match="turn"):
        responder.read(message)
    with pytest.raises(ValueError, match="turn"):
        responder.write(b"")


@pytest.mark.parametrize("size", [0, 4, 31])
def test_a_static_key_that_is_too_short_is_a_bad_handshake_on_both_sides(size: int):
    initiator, responder = pair()
    responder.read(initiator.write(b""))
    with pytest.raises(BadHandshake):
        initiator.read(with_short_key(responder, size))

    initiator, responder = pair()
    responder.read(initiator.write(b""))
    initiator.read(responder.write(b""))
    with pytest.raises(BadHandshake):
        responder.read(with_short_key(initiator, size))
