"""A run's manifest: what its trainer signs, and what a stranger checks before joining.

The DHT keeps the manifests of all runs under one key, with a subkey for each trainer. The signature
binds the run and the address to the trainer's key.

Units:   ids in bytes.
Errors:  BadMessage for a manifest that is forged or of another version of the program.
"""

import hashlib
from dataclasses import dataclass

from p2pswarm.config import RunConfig
from p2pswarm.crypto.identity import Identity, verify
from p2pswarm.errors import BadMessage
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.settings import run_from_json, run_id, run_to_json
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


def sign_manifest(identity: Identity, config: RunConfig, address: Address) -> Manifest:
    """Make what the trainer of `config`, reachable at `address`, announces."""
    text = run_to_json(config)
    where = str(address)
    signature = identity.sign(MANIFEST_TAG, text + b"\0" + where.encode())
    return Manifest(text, identity.public_key, where, signature)


def read_offer(manifest: Manifest) -> RunOffer:
    """Check a manifest and read it."""
    signed = manifest.config + b"\0" + manifest.address.encode()
    if not verify(manifest.trainer_key, MANIFEST_TAG, signed, manifest.signature):
        raise BadMessage("a manifest with a wrong signature")
    try:
        address = Address.parse(manifest.address)
    except ValueError as error:
        raise BadMessage(f"a manifest without an address: {error}") from error
    config = run_from_json(manifest.config)
    trainer = Contact(PeerId.of_key(manifest.trainer_key), address)
    return RunOffer(run_id(manifest.config), config, trainer)
