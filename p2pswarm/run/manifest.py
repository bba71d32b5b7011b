"""A run's manifest: what its trainer signs, and what a stranger checks before joining.

The DHT keeps the manifests of all runs under one key, with a subkey for each trainer. The signature
binds the run and the address to the trainer's key.

Errors:  BadMessage for a manifest that is forged or broken. One of another version of the
         program is no error: its trainer is known and can be told.
"""

import dataclasses
import hashlib
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.crypto.identity import Identity, verify
from p2pswarm.run.messages.run import Manifest, RunOrigin
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import (
    RUN_VERSION,
    OtherRunVersion,
    run_from_json,
    run_id,
    run_to_json,
)

MANIFEST_TAG = b"p2pswarm-manifest-2:"
NONCE_BYTES = 16
RUNS_KEY = hashlib.sha256(b"p2pswarm-runs-1:").digest()
"""The DHT's key of every run's manifest; the subkey is the trainer's id."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """All that makes a run this run and no other.

    One that goes on from a checkpoint is another run, with another nonce: nobody who still knows
    the old one can interfere.
    """

    config: RunConfig
    corpus: bytes
    """The digest of its text."""
    nonce: bytes
    """Drawn when the run first started, NONCE_BYTES long."""
    founder: bytes
    """The peer id of the trainer that made the run; another one may lead it by now."""
    origin: RunOrigin | None = None
    """The checkpoint that it goes on from; None for the first weights."""

    @property
    def run(self) -> bytes:
        """The id of the run."""
        text, origin = run_to_json(self.config), _encoded(self.origin)
        return run_id(text, self.corpus, self.nonce, self.founder, origin)


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
    card: bytes = b""
    """What is said to be the trainer's card; nobody has looked into it."""


@dataclass(frozen=True, slots=True)
class UnreadableOffer:
    """A run of another version of the program: who signed it is sure, but it cannot be joined."""

    run: bytes
    """The id of the run."""
    trainer: Contact
    reason: str
    """What is wrong, in one line with the remedy."""


def sign_manifest(
    identity: Identity, run: RunIdentity, address: Address, card: bytes = b""
) -> Manifest:
    """Make what the trainer of `run`, reachable at `address` and by its card, announces."""
    text, key, where = run_to_json(run.config), identity.public_key, str(address)
    unsigned = Manifest(text, run.corpus, run.nonce, run.founder, key, where, b"", run.origin, card)
    signature = identity.sign(MANIFEST_TAG, signed_part(unsigned))
    return dataclasses.replace(unsigned, signature=signature)


def signed_part(manifest: Manifest) -> bytes:
    """The bytes that the signature covers; neither JSON nor an address has a NUL."""
    text = manifest.config + b"\0" + manifest.address.encode() + b"\0"
    return text + manifest.corpus + manifest.nonce + manifest.founder + _encoded(manifest.origin)


def read_offer(manifest: Manifest, version: int = RUN_VERSION) -> RunOffer | UnreadableOffer:
    """Check a manifest's signature, and read it as a program of `version` does."""
    signature = manifest.signature
    if not verify(manifest.trainer_key, MANIFEST_TAG, signed_part(manifest), signature):
        raise BadMessage("a manifest with a wrong signature")
    try:
        address = Address.parse(manifest.address)
    except ValueError as error:
        raise BadMessage(f"a manifest without an address: {error}") from error
    named = manifest.corpus, manifest.nonce, manifest.founder
    run = run_id(manifest.config, *named, _encoded(manifest.origin))
    trainer = Contact(PeerId.of_key(manifest.trainer_key), address)
    try:
        config = run_from_json(manifest.config, version)
    except OtherRunVersion as error:
        return UnreadableOffer(run, trainer, str(error))
    identity = RunIdentity(config, *named, manifest.origin)
    return RunOffer(run, config, trainer, identity, manifest.card)


def _encoded(origin: RunOrigin | None) -> bytes:
    return b"" if origin is None else origin.encoded
