"""The context of a trainer: all that it is given once, by the code that composes it."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Contact
from p2pswarm.data.corpus import Corpus
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.run.chain.base import ChainStore
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.chain_log import Restored
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.manifest import RunOrigin
from p2pswarm.run.member_cards import NO_CARDS, MemberCards
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.coordinator.outputs import Report
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom, SavingPlan

Proof = Callable[[int], Iterator[bytes]]
"""Makes the digest of a stage's state, in steps; the last value counts. Blocks, raises Unusable."""


@dataclass(frozen=True, slots=True)
class ChainStart:
    """All that a trainer's seat is made of."""

    identity: Identity
    genesis: Genesis
    store: ChainStore
    restored: Restored
    """What the store said when it was opened."""
    leads_at_once: bool
    """Nobody is to be waited for: it made the run, or it was the run's only voter."""
    lasts: bool = False
    """Another process can go on with the store, so leaving does not end the run."""


def genesis_of(run: bytes, founder: bytes, config: RunConfig, origin: RunOrigin | None) -> Genesis:
    """Return what the first record of a run is checked against.

    `founder`: the peer that made it.
    """
    genesis = Genesis.founded(run, founder, config.stages, config.batch.microbatches)
    return genesis if origin is None else genesis.after(origin.version, origin.checkpoint)


def founding_start(
    identity: Identity, run: bytes, config: RunConfig, origin: RunOrigin | None = None
) -> ChainStart:
    """Where a trainer begins that makes a run, and keeps its chain in memory."""
    genesis = genesis_of(run, identity.peer_id.raw, config, origin)
    store = MemoryChain(genesis.voters[0].memory)
    return ChainStart(identity, genesis, store, store.restored(genesis), leads_at_once=True)


def raised(reason: Unusable) -> None:
    """End the trainer with the reason why its text cannot be read."""
    raise reason


@dataclass(frozen=True, slots=True)
class TrainerContext:
    """The network, the run and its text."""

    rpc: Rpc
    tensors: TensorTransfer
    run: RunConfig
    run_id: bytes
    corpus: Corpus
    report: Callable[[Report], None]
    """Called with news for people, as it happens."""
    rng: random.Random
    """Differs from start to start: attempts to lead are named by it."""
    chain: ChainStart
    trainers: tuple[Contact, ...] = ()
    """Where other trainers of the run are, as far as it is known."""
    saving: SavingPlan | None = None
    """Where and when checkpoints are written; None: never."""
    origin: ResumedFrom | None = None
    """What the run goes on from; None: the first weights."""
    cards: MemberCards = NO_CARDS
    """What is known of where peers are dialled."""
    proof: Proof | None = None
    """Makes the digests of what the run begins with; None: what its members say is believed."""
    text_lost: Callable[[Unusable], None] = raised
    """Called when samples cannot be read any more; what it does not raise is waited for."""
