"""Which run a trainer takes part in: a new one, one that it goes on with, or one of others."""

import asyncio
import dataclasses
import math
import os
from dataclasses import dataclass

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.node.run.discovery import answering, ends, learn_cards, manifests
from p2pswarm.node.run.invitation_text import invitation_of
from p2pswarm.node.run.run_choice import CLOCKS_DIFFER, invited_to
from p2pswarm.node.run.run_folder import RunFolder, SavedRun, make_folder
from p2pswarm.node.run.run_match import (
    check_records,
    check_same,
    fitting,
    genesis_of,
    owned_as,
)
from p2pswarm.node.stack.stack import LOOK_AGAIN_S, NodeStack, Say
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import MEMORY_BYTES, VoterId
from p2pswarm.run.manifest import NONCE_BYTES, RunIdentity
from p2pswarm.run.messages.run import RunOver
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.trainer.coordinator_io.chain_start import ChainStart, founding_start
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom

OVER_AFTER_S = 30.0  # a trainer that is started anew beside its standby offers its run by then


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A trainer's place in a run."""

    identity: RunIdentity
    place: ChainStart
    trainers: tuple[Contact, ...] = ()
    """Other trainers of the run that have offered it."""
    folder: RunFolder | None = None
    resumed: ResumedFrom | None = None
    """The checkpoint that the run goes on from, if this trainer knows where it is."""

    def finished(self) -> None:
        """The run is over: this folder begins another one next time."""
        if self.folder is not None:
            self.folder.write(SavedRun(self.identity, finished=True, resumed=self.resumed))


async def enter_run(
    stack: NodeStack, corpus: bytes, say: Say, resumed: ResumedFrom | None = None
) -> RunEntry:
    """The run of the settings and of the text whose digest is `corpus`.

    It goes on from a checkpoint if one was `resumed`. A standby waits here until somebody offers
    the run.
    """
    config = stack.config
    check_records(config.run)
    folder = None
    if config.state is not None:
        make_folder(config.state)
        folder = RunFolder(config.state)
    begins = config.train.new or config.train.resume or config.train.begin_from
    saved = folder.read() if folder and not config.train.new else None
    if begins and not _is_begun(saved, config, corpus, resumed):
        saved = None
    if saved is not None and not saved.finished:
        stack = _owned_as(stack, saved.identity.config)
        return _go_on(stack, folder, saved, corpus, say)
    if config.train.standby:
        return await _stand_by(stack, folder, corpus, say)
    origin = resumed.origin if resumed else None
    if origin is not None and origin.anew:
        moments = f"moments of {origin.before:,} updates" if origin.before else "no moments"
        say(f"a new run, {origin.text}, with its weights and {moments}")
    nonce, me = os.urandom(NONCE_BYTES), stack.identity.peer_id.raw
    identity = RunIdentity(config.run, corpus, nonce, me, origin)
    if folder is None:
        place = founding_start(stack.identity, identity.run, config.run, origin)
        return RunEntry(identity, place, resumed=resumed)
    founded = SavedRun(identity, finished=False, resumed=resumed)
    return _in_folder(stack, folder, founded, genesis_of(identity).voters[0].memory, say)


def _is_begun(
    saved: SavedRun | None, config: NodeConfig, corpus: bytes, resumed: ResumedFrom | None
) -> bool:
    """Return whether the folder's run is the one that a command line with --from has begun before.

    So who starts a trainer again by the same command loses no step.
    """
    if saved is None or resumed is None or not resumed.origin.anew:
        return False
    there, run = saved.identity, owned_as(config.run, saved.identity.config)
    same_origin = resumed.origin == there.origin or resumed.origin.run == there.run
    return same_origin and (there.config, there.corpus) == (run, corpus)


def _owned_as(stack: NodeStack, known: RunConfig) -> NodeStack:
    """The same node, with the owner of the run that it takes part in."""
    run = owned_as(stack.config.run, known)
    return dataclasses.replace(stack, config=dataclasses.replace(stack.config, run=run))


def _go_on(
    stack: NodeStack, folder: RunFolder | None, saved: SavedRun, corpus: bytes, say: Say
) -> RunEntry:
    """The run of the folder, which is not over."""
    assert folder is not None, "it was read"
    run = stack.config.run
    check_same(saved, folder, run, corpus)
    entry = _in_folder(stack, folder, saved, os.urandom(MEMORY_BYTES), say)
    version = entry.place.restored.learner.chain.head.version
    # Of its newest record a voter knows only that it was proposed, until an election is won.
    done = f"{version} of {run.steps} steps are known to be done"
    leads = "" if entry.place.leads_at_once else "; it is asked which trainer leads"
    say(f"going on with run {run.name!r} of {folder.path}: {done}{leads}")
    return entry


async def _stand_by(
    stack: NodeStack, folder: RunFolder | None, corpus: bytes, say: Say
) -> RunEntry:
    """A run that another trainer has founded.

    Anybody can say that such a run is over: a standby that knows no chain yet cannot tell who was
    its trainer. So its user hears of it, and decides.
    """
    run, me, clock = stack.config.run, stack.identity.peer_id.raw, asyncio.get_running_loop().time
    said, over_s = "", clock() + OVER_AFTER_S
    while True:
        found = await manifests(stack)
        if (known := invited_to(found, invitation_of(stack.config))) is not None:
            stack = _owned_as(stack, known)
            run = stack.config.run
        offers, why = fitting(found, run, corpus, me)
        learn_cards(stack, offers)
        there = await answering(stack.rpc, [offer.trainer for offer in offers])
        ours = [offer for offer in offers if offer.trainer in there]
        if ours:
            break
        if not offers and stack.dht.clocks_differ:
            why = CLOCKS_DIFFER
        if why != said:
            said = why
            say(why)
        if not offers and clock() >= over_s and (over := await ends(stack, run, corpus)):
            say(_hearsay(*over[0]))
            over_s = math.inf
        await asyncio.sleep(LOOK_AGAIN_S)
    identity = ours[0].identity
    trainers = tuple(offer.trainer for offer in ours if offer.run == identity.run)
    say(f"standing by for run {run.name!r} of {trainers[0].address}")
    memory = os.urandom(MEMORY_BYTES)
    if folder is not None:
        joined = SavedRun(identity, finished=False)
        return _in_folder(stack, folder, joined, memory, say, trainers)
    store, genesis = MemoryChain(memory), genesis_of(identity)
    restored = store.restored(genesis)
    place = ChainStart(stack.identity, genesis, store, restored, leads_at_once=False)
    return RunEntry(identity, place, trainers)


def _hearsay(said_by: bytes, over: RunOver) -> str:
    """Return what the user is told of an end that nothing proves."""
    return (
        f"{PeerId(said_by).short} says that such a run is over after {over.version} steps; anybody "
        "can say so, and this trainer goes on waiting: if you know that it is true, end this one"
    )


def _in_folder(
    stack: NodeStack,
    folder: RunFolder,
    run: SavedRun,
    memory: bytes,
    say: Say,
    trainers: tuple[Contact, ...] = (),
) -> RunEntry:
    """A place whose chain is in the folder, which says so from now on."""
    genesis = genesis_of(run.identity)
    store, restored = folder.open_chain(genesis, memory)
    if store.warning is not None:
        say(store.warning)
    folder.write(run)
    me = stack.identity.peer_id.raw
    alone = restored.votes_alone(VoterId(me, store.memory))
    place = ChainStart(stack.identity, genesis, store, restored, leads_at_once=alone, lasts=True)
    return RunEntry(run.identity, place, trainers, folder, run.resumed)
