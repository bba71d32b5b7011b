"""A run's manifest: what its trainer signs, and what a stranger checks before joining.

The DHT keeps the manifests of all runs under one key, with a subkey for each trainer. The signature
binds the run and the address to the trainer's key.

Units:   ids in bytes.
Errors:  BadMessage for a manifest that is forged or broken. One of another version of the
         program is no error: its trainer is known and can be told.
"""

import dataclasses
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

MANIFEST_TAG = b"p2pswarm-manifest-2:"
NONCE_BYTES = 16
RUNS_KEY = hashlib.sha256(b"p2pswarm-runs-1:").digest()
"""The DHT's key of every run's manifest; the subkey is the trainer's id."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """All that makes a run this run and no other. A run that is resumed keeps it."""

    config: RunConfig
    corpus: bytes
    """The digest of its text."""
    nonce: bytes
    """Drawn when the run first started, NONCE_BYTES long."""
    founder: bytes
    """The peer id of the trainer that made the run; another one may lead it by now."""

    @property
    def run(self) -> bytes:
        """The id of the run."""
        return run_id(run_to_json(self.config), self.corpus, self.nonce, self.founder)


@dataclass(frozen=True, slots=True)
class RunOffer:
    """A run that can be joined."""

    run: bytes
    """The id of the run."""
    config: RunConfig
    trainer: Contact
    """Who offers it: the coordinator, or a standby."""
    identity: RunIdentity
    """All that the id is a hash of."""


@dataclass(frozen=True, slots=True)
class UnreadableOffer:
    """A run of another version of the program: who signed it is sure, but it cannot be joined."""

    run: bytes
    """The id of the run."""
    trainer: Contact
    reason: str
    """What is wrong, in one line with the remedy."""


def sign_manifest(identity: Identity, run: RunIdentity, address: Address) -> Manifest:
    """Make what the trainer of `run`, reachable at `address`, announces."""
    text, key, where = run_to_json(run.config), identity.public_key, str(address)
    unsigned = Manifest(text, run.corpus, run.nonce, run.founder, key, where, b"")
    signature = identity.sign(MANIFEST_TAG, signed_part(unsigned))
    return dataclasses.replace(unsigned, signature=signature)


def signed_part(manifest: Manifest) -> bytes:
    """The bytes that the signature covers; neither JSON nor an address has a NUL."""
    text = manifest.config + b"\0" + manifest.address.encode() + b"\0"
    return text + manifest.corpus + manifest.nonce + manifest.founder


def read_offer(manifest: Manifest, version: int = RUN_VERSION) -> RunOffer | UnreadableOffer:
    """Check a manifest's signature, and read it as a program of `version` does."""
    signature = manifest.signature
    if not verify(manifest.trainer_key, MANIFEST_TAG, signed_part(manifest), signature):
        raise BadMessage("a manifest with a wrong signature")
    try:
        address = Address.parse(manifest.address)
    except ValueError as error:
        raise BadMessage(f"a manifest without an address: {error}") from error
    run = run_id(manifest.config, manifest.corpus, manifest.nonce, manifest.founder)
    trainer = Contact(PeerId.of_key(manifest.trainer_key), address)
    try:
        config = run_from_json(manifest.config, version)
    except OtherRunVersion as error:
        return UnreadableOffer(run, trainer, str(error))
    identity = RunIdentity(config, manifest.corpus, manifest.nonce, manifest.founder)
    return RunOffer(run, config, trainer, identity)
