"""The start of a trainer in the chain of a run: its key, the first record, and its file.

A node that only looks for runs imports it, so it loads no torch.
"""

from dataclasses import dataclass

from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.chain_log import ChainStore, Restored
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.codec_ladder import CodecChoices
from p2pswarm.settings.config import RunConfig


@dataclass(frozen=True, slots=True)
class ChainStart:
    """All that a trainer's seat is made of."""

    identity: Identity
    genesis: Genesis
    store: ChainStore
    restored: Restored
    """Content of the store when it was opened."""
    leads_at_once: bool
    """Nobody is to be waited for: it made the run, or it was the run's only voter."""
    lasts: bool = False
    """Another process can go on with the store, so leaving does not end the run."""


def genesis_of(
    run: bytes, founder: bytes, config: RunConfig, origin: RunOrigin | None = None
) -> Genesis:
    """Return the ground of a run's first record; `founder`: the peer that made it."""
    size, codecs = config.batch.microbatches, CodecChoices.of(config)
    tokens = config.counted_tokens
    genesis = Genesis.founded(run, founder, config.stages, size, codecs, tokens)
    return genesis if origin is None else genesis.after(origin.begins, origin.checkpoint)


def founding_start(
    identity: Identity, run: bytes, config: RunConfig, origin: RunOrigin | None = None
) -> ChainStart:
    """The place of a trainer that makes a run, and keeps its chain in memory."""
    genesis = genesis_of(run, identity.peer_id.raw, config, origin)
    store = MemoryChain(genesis.voters[0].memory)
    return ChainStart(identity, genesis, store, store.restored(genesis), leads_at_once=True)
