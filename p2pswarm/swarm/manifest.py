"""A run's manifest: what its trainer signs, and what a stranger checks before joining.

The DHT keeps the manifests of all runs under one key, with a subkey for each trainer. The signature
binds the run and the address to the trainer's key.

Units:   ids in bytes.
Errors:  BadMessage for a manifest that is forged or broken. One of another version of the
         program is no error: its trainer is known and can be told.
"""

import hashlib
from dataclasses import dataclass

from p2pswarm.config import RunConfig
from p2pswarm.crypto.identity import Identity, verify
from p2pswarm.errors import BadMessage
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.settings import (
    RUN_VERSION,
    OtherRunVersion,
    run_from_json,
    run_id,
    run_to_json,
)
from p2pswarm.swarm.messages.run import Manifest

MANIFEST_TAG = b"p2pswarm-manifest-1:"
RUNS_KEY = hashlib.sha256(b"p2pswarm-runs-1:").digest()
"""The DHT's key of every run's manifest; the subkey is the trainer's id."""


@dataclass(frozen=True, slots=True)
class RunOffer:
    """A run that can be joined."""

    run: bytes
    """The id of the run: a hash of its config."""
    config: RunConfig
    trainer: Contact


@dataclass(frozen=True, slots=True)
class UnreadableOffer:
    """A run of another version of the program: who signed it is sure, but it cannot be joined."""

    run: bytes
    """The id of the run: a hash of its config."""
    trainer: Contact
    reason: str
    """What is wrong, in one line with the remedy."""


def sign_manifest(identity: Identity, config: RunConfig, address: Address) -> Manifest:
    """Make what the trainer of `config`, reachable at `address`, announces."""
    text = run_to_json(config)
    where = str(address)
    signature = identity.sign(MANIFEST_TAG, text + b"\0" + where.encode())
    return Manifest(text, identity.public_key, where, signature)


def read_offer(manifest: Manifest, version: int = RUN_VERSION) -> RunOffer | UnreadableOffer:
    """Check a manifest's signature, and read it as a program of `version` does."""
    signed = manifest.config + b"\0" + manifest.address.encode()
    if not verify(manifest.trainer_key, MANIFEST_TAG, signed, manifest.signature):
        raise BadMessage("a manifest with a wrong signature")
    try:
        address = Address.parse(manifest.address)
    except ValueError as error:
        raise BadMessage(f"a manifest without an address: {error}") from error
    run, trainer = run_id(manifest.config), Contact(PeerId.of_key(manifest.trainer_key), address)
    try:
        config = run_from_json(manifest.config, version)
    except OtherRunVersion as error:
        return UnreadableOffer(run, trainer, str(error))
    return RunOffer(run, config, trainer)
