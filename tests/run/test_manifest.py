"""A run's manifest: what a stranger can rely on."""

import dataclasses

import msgpack
import pytest

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.manifest import (
    MANIFEST_TAG,
    NONCE_BYTES,
    RunIdentity,
    RunOffer,
    UnreadableOffer,
    read_offer,
    sign_manifest,
    signed_part,
)
from p2pswarm.run.messages.run import Manifest
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import RUN_VERSION, run_id, run_to_json

TRAINER = Identity.generate(b"trainer")
RUN = RunConfig(name="a run", stages=3)
IDENTITY = RunIdentity(RUN, b"c" * 32, b"n" * NONCE_BYTES, TRAINER.peer_id.raw)
MANIFEST = sign_manifest(TRAINER, IDENTITY, Address("203.0.113.7", 4000))


def test_a_manifest_tells_the_run_and_where_its_trainer_is():
    arrived = decode(encode(MANIFEST))

    offer = read_offer(arrived)

    assert offer.config == RUN
    assert offer.run == IDENTITY.run
    assert offer.identity == IDENTITY
    assert offer.trainer == Contact(TRAINER.peer_id, Address("203.0.113.7", 4000))


@pytest.mark.parametrize(
    "change",
    [
        {"corpus": b"C" * 32},
        {"nonce": b"N" * 16},
        {"founder": b"F" * 32},
        {"config": RunConfig(name="a run", stages=2)},
    ],
)
def test_another_text_nonce_founder_or_configuration_is_another_run(change):
    assert dataclasses.replace(IDENTITY, **change).run != IDENTITY.run
    assert dataclasses.replace(IDENTITY).run == IDENTITY.run


@pytest.mark.parametrize(
    "change",
    [
        {"address": "203.0.113.8:4000"},
        {"config": run_to_json(RunConfig(name="another"))},
        {"corpus": b"C" * 32},
        {"nonce": b"N" * 16},
        {"founder": b"F" * 32},
        {"trainer_key": Identity.generate(b"thief").public_key},
        {"signature": bytes(64)},
    ],
)
def test_a_forged_manifest_is_refused(change):
    with pytest.raises(BadMessage, match="wrong signature"):
        read_offer(dataclasses.replace(MANIFEST, **change))


def signed(config: bytes, address: str) -> Manifest:
    corpus, nonce, founder = IDENTITY.corpus, IDENTITY.nonce, IDENTITY.founder
    unsigned = Manifest(config, corpus, nonce, founder, TRAINER.public_key, address, bytes(64))
    signature = TRAINER.sign(MANIFEST_TAG, signed_part(unsigned))
    return dataclasses.replace(unsigned, signature=signature)


def test_a_signed_manifest_of_another_version_tells_who_its_trainer_is():
    text = b'{"run":{},"version":%d}' % (RUN_VERSION + 1)
    offer = read_offer(signed(text, "203.0.113.7:4000"))

    assert isinstance(offer, UnreadableOffer)
    assert offer.run == run_id(text, IDENTITY.corpus, IDENTITY.nonce, IDENTITY.founder)
    assert offer.trainer == Contact(TRAINER.peer_id, Address("203.0.113.7", 4000))
    assert f"version {RUN_VERSION + 1}; this program speaks version {RUN_VERSION}" in offer.reason


def test_the_version_that_is_read_is_the_programs():
    assert isinstance(read_offer(MANIFEST, version=RUN_VERSION + 1), UnreadableOffer)
    assert isinstance(read_offer(MANIFEST, version=RUN_VERSION), RunOffer)


@pytest.mark.parametrize("speaks", [-1, 65_536, 2**62, True, "1", None])
def test_a_wrong_version_number_never_arrives(speaks):
    with pytest.raises(BadMessage, match=r"OtherVersion\.speaks"):
        decode(msgpack.packb([50, speaks]))


def test_a_forged_manifest_of_another_version_names_no_trainer():
    forged = dataclasses.replace(MANIFEST, address="203.0.113.8:4000")

    with pytest.raises(BadMessage, match="wrong signature"):
        read_offer(forged, version=RUN_VERSION + 1)


def test_a_signed_manifest_without_an_address_is_refused():
    with pytest.raises(BadMessage, match="without an address"):
        read_offer(signed(run_to_json(RUN), "nowhere"))


ESCAPES = '"\\u001b[2J\\r\\n"'


@pytest.mark.parametrize(
    "config",
    [
        '{"version": %s, "run": {}}',
        '{"version": ' + str(RUN_VERSION) + ', "run": {"name": %s}}',
        '{"version": ' + str(RUN_VERSION) + ', "run": {"batch": %s}}',
        '{"version": ' + str(RUN_VERSION) + ', "run": {%s: 1}}',
        '{"version": ' + str(RUN_VERSION) + ", %s: 1}",
        "%s",
    ],
)
def test_what_is_said_of_a_manifest_is_printable_whatever_is_in_it(config):
    with pytest.raises(BadMessage) as refused:
        read_offer(signed((config % ESCAPES).encode(), "203.0.113.7:4000"))

    assert str(refused.value).isprintable()
