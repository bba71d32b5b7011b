"""The calls of a run as a node makes them: its own, or through the guard of who may do what."""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Sequence

from p2pswarm.base.errors import BadMessage, NotAdmitted, RunEnded, SwarmError, Unusable
from p2pswarm.base.ids import Contact
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.node.run.invitation_text import invitation_of
from p2pswarm.node.run.owner_folder import OwnerFolder
from p2pswarm.node.run.run_folder import RunFolder, make_folder
from p2pswarm.node.run.run_match import owned_as
from p2pswarm.node.stack.stack import NodeStack, Say
from p2pswarm.run.access.gate import UNINVITED, AccessGate, RunDoor
from p2pswarm.run.access.grant import Access
from p2pswarm.run.access.messages import AccessList, Token
from p2pswarm.run.access.rpc_guard import GuardedRpc, RoleRules
from p2pswarm.run.chain.messages import HandOver, Heartbeat, Prepare, Propose
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.run.messages.balance import AskBalance, AskCapacities
from p2pswarm.run.messages.membership import Join
from p2pswarm.run.messages.run import OtherVersion
from p2pswarm.run.messages.state import FetchSaved
from p2pswarm.run.messages.status import AskStatus
from p2pswarm.run.messages.step import Commit, Fence, Reduce
from p2pswarm.run.messages.trainers import (
    AskReachable,
    Enlist,
    FetchReferences,
    NotHeard,
    WhoLeads,
)
from p2pswarm.run.messages.waits import AskWaits, AskWhy
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig

log = logging.getLogger(__name__)

EVERYBODY = Access(0)
VOTES = Access.SERVE | Access.TRAIN
PROOF_S = 2.0  # for a trainer to show its token; it has answered a moment ago
ORDERS = (
    *(Enlist, Fence, Reduce, Commit, Prepare, Propose, Heartbeat, HandOver),
    *(AskReachable, NotHeard, FetchReferences),
)
"""Messages that only trainers send."""
QUESTIONS = (AskStatus, AskBalance, AskCapacities, AskWhy)
"""What people ask a trainer about its run; `AskWaits` is asked of servers."""
CLOSED_RULES = RoleRules(
    asked_by=dict.fromkeys(ORDERS, Access.TRAIN)
    | dict.fromkeys((*QUESTIONS, AskWaits), Access.WATCH)
    | {OtherVersion: EVERYBODY},
    asked_of=dict.fromkeys(
        (Join, Enlist, WhoLeads, FetchSaved, FetchReferences, *QUESTIONS),
        Access.TRAIN,
    ),
)
"""A node of another version cannot read a token, and tells the trainer so without one."""
OPEN_RULES = RoleRules(
    asked_by=dict.fromkeys(ORDERS, Access.TRAIN),
    asked_of=dict.fromkeys((Join, Enlist, WhoLeads, FetchSaved, FetchReferences), Access.TRAIN),
    others=EVERYBODY,
)
"""Strangers compute. They give no orders, and nobody takes one of them for a trainer."""


def check_closed(config: NodeConfig) -> None:
    """Raise Unusable if this trainer is to close its run and has no place for the owner's key."""
    train = config.train
    # who stands by learns the owner from the run that it is invited to
    closes = train.closed and not config.run.owner and not train.standby
    if closes and config.state is None:
        raise Unusable("a closed run needs a folder for its owner's key: set `state` in the file")


def owned_by_us(config: NodeConfig) -> NodeConfig:
    """The settings of a trainer, whose run names the owner's key if the trainer keeps one.

    A closed run has to; an open one has it in the folder of `state`, for whom it invites to more
    than computing.
    """
    check_closed(config)
    train, run = config.train, config.run
    if run.owner or train.standby or config.state is None:
        return config
    make_folder(config.state)
    saved = None if train.new or train.resume else RunFolder(config.state).read()
    strangers = "nothing" if train.closed else run.strangers
    if saved is not None and not saved.finished:
        known = saved.identity.config
        if known.closed or not train.closed:  # it goes on with that, whoever owns it
            return dataclasses.replace(config, run=owned_as(run, known))
    with OwnerFolder(config.state).key(make=True) as owner:
        run = dataclasses.replace(run, owner=owner.public_key.hex(), strangers=strangers)
    return dataclasses.replace(config, run=run)


@contextlib.asynccontextmanager
async def run_calls(stack: NodeStack, identity: RunIdentity, say: Say) -> AsyncIterator[Rpc]:
    """The calls of a run while this block lasts: those that the run's settings let peers make."""
    config, me = identity.config, stack.identity.peer_id
    if config.strangers == "lead":
        yield stack.rpc
        return
    door = RunDoor(
        identity.run, bytes.fromhex(config.owner), identity.founder, open=not config.closed
    )
    token = _token(stack, identity)
    if config.closed and token is None and me.raw != identity.founder:
        raise Unusable(UNINVITED)
    rules = CLOSED_RULES if config.closed else OPEN_RULES
    async with GuardedRpc(stack.rpc, AccessGate(door, me.raw, token), rules, time.time, say) as rpc:
        ours = token is not None or me.raw == identity.founder  # a stranger's run writes nothing
        if stack.config.state is not None and config.owner and ours:
            folder = OwnerFolder(stack.config.state)
            _keep_lists(rpc, folder, identity.run)
            if stack.config.role == "trainer":
                folder.write_address(stack.endpoint.contact.address)
        yield rpc


def _token(stack: NodeStack, identity: RunIdentity) -> Token | None:
    """Return what this node shows in a run; None if it is not invited to it."""
    invitation = invitation_of(stack.config)
    if invitation is None or invitation.run != identity.run:
        return None
    return invitation.token(stack.identity.peer_id)


def may_vote(rpc: Rpc, peer: bytes) -> bool:
    """Return whether a server may be a voter: one that the run's owner has invited.

    Where strangers may lead, any server may.
    """
    return has_invitation(rpc, peer)


def has_invitation(rpc: Rpc, peer: bytes, roles: Access = VOTES) -> bool:
    """Return whether the run's owner has invited a peer for one of the roles, or trusts all."""
    return not isinstance(rpc, GuardedRpc) or not rpc.gate.refusal(peer, roles, time.time())


def may_vote_here(stack: NodeStack, run: RunConfig) -> bool:
    """Return whether this node, as a server, may be asked to vote in a run."""
    return run.strangers == "lead" or bool(stack.config.invite)


async def is_impostor(rpc: Rpc, trainer: Contact) -> bool:
    """Return whether a peer that calls itself a trainer of a run answers, and is none."""
    if not isinstance(rpc, GuardedRpc):
        return False
    try:
        await rpc.meet(trainer, Join, PROOF_S)
    except NotAdmitted as error:
        log.info("%s is no trainer of the run: %s", trainer.address, error)
        return bool(rpc.gate.refusal(_raw(trainer), Access.TRAIN, time.time()))
    except SwarmError as error:
        log.info("%s does not answer: %s", trainer.address, error)
    return False


def _raw(peer: Contact) -> bytes:
    assert peer.peer is not None, "the manifest was signed with its key"
    return peer.peer.raw


async def proven_trainers(rpc: Rpc, trainers: Sequence[Contact]) -> list[Contact]:
    """Those of peers that call themselves trainers of a run that may be asked to lead it."""
    if not isinstance(rpc, GuardedRpc):
        return list(trainers)
    async with asyncio.TaskGroup() as tasks:
        asked = [(one, tasks.create_task(_is_trainer(rpc, one))) for one in trainers]
    return [one for one, task in asked if task.result()]


async def _is_trainer(rpc: GuardedRpc, peer: Contact) -> bool:
    try:
        await rpc.meet(peer, Join, PROOF_S)
    except SwarmError as error:
        log.info("%s is no trainer of the run: %s", peer.address, error)
        return False
    return True


def own_refusal(rpc: Rpc) -> str:
    """Return why this node left its run; empty if it is a member, or a stranger in an open run."""
    return rpc.gate.own_refusal(time.time()) if isinstance(rpc, GuardedRpc) else ""


async def until_out(rpc: Rpc) -> None:
    """Raise RunEnded when this node is no member of its run any more; until cancelled."""
    if isinstance(rpc, GuardedRpc):
        raise RunEnded(await rpc.until_out())


def _keep_lists(rpc: GuardedRpc, folder: OwnerFolder, run: bytes) -> None:
    """Begin with the access list that is kept in the folder, and keep newer ones there."""

    def keep(access: AccessList) -> None:
        try:
            folder.write_list(access)
        except Unusable as error:
            log.warning("%s", error)

    if (kept := folder.access(run)) is not None:
        try:
            rpc.learn(kept)
        except BadMessage as error:
            raise Unusable(f"{folder.path}: {error}: move the .access file away") from error
    rpc.on_list = keep
