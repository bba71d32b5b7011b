"""The calls of a run as a node makes them: its own, or through the guard of a closed run."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator

from p2pswarm.base.errors import BadMessage, RunEnded, Unusable
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.node.run.invitation_text import invitation_of
from p2pswarm.node.run.owner_folder import OwnerFolder
from p2pswarm.node.run.run_folder import RunFolder, make_folder
from p2pswarm.node.stack.stack import NodeStack, Say
from p2pswarm.run.access.gate import UNINVITED, AccessGate, RunDoor
from p2pswarm.run.access.grant import Access
from p2pswarm.run.access.messages import AccessList
from p2pswarm.run.access.rpc_guard import GuardedRpc, RoleRules
from p2pswarm.run.chain.messages import HandOver, Heartbeat, Prepare, Propose
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.run.messages.balance import AskBalance, AskCapacities
from p2pswarm.run.messages.membership import Join
from p2pswarm.run.messages.run import OtherVersion
from p2pswarm.run.messages.status import AskStatus
from p2pswarm.run.messages.step import Commit, Fence, Reduce
from p2pswarm.run.messages.trainers import Enlist, WhoLeads
from p2pswarm.settings.config import NodeConfig

log = logging.getLogger(__name__)

EVERYBODY = Access(0)
ORDERS = (Enlist, Fence, Reduce, Commit, Prepare, Propose, Heartbeat, HandOver)
"""Messages that only trainers send."""
RULES = RoleRules(
    asked_by=dict.fromkeys(ORDERS, Access.TRAIN)
    | dict.fromkeys((AskStatus, AskBalance, AskCapacities), Access.WATCH)
    | {OtherVersion: EVERYBODY},
    asked_of=dict.fromkeys(
        (Join, Enlist, WhoLeads, AskStatus, AskBalance, AskCapacities), Access.TRAIN
    ),
)
"""A node of another version cannot read a token, and tells the trainer so without one."""


def check_closed(config: NodeConfig) -> None:
    """Raise Unusable if this trainer is to close its run and has no place for the owner's key."""
    if _closes(config) and config.state is None:
        raise Unusable("a closed run needs a folder for its owner's key: set `state` in the file")


def _closes(config: NodeConfig) -> bool:
    # who stands by learns the owner from the run that it is invited to
    return config.train.closed and not config.run.owner and not config.train.standby


def closed_by_us(config: NodeConfig) -> NodeConfig:
    """The settings of a trainer, whose run names the owner's key if it is to be closed."""
    check_closed(config)
    if not _closes(config):
        return config
    assert config.state is not None, "it was checked"
    make_folder(config.state)
    saved = None if config.train.new else RunFolder(config.state).read()
    if saved is not None and not saved.finished and saved.identity.config.owner:
        return config  # it goes on with that, whoever closed it
    with OwnerFolder(config.state).key(make=True) as owner:
        run = dataclasses.replace(config.run, owner=owner.public_key.hex())
    return dataclasses.replace(config, run=run)


@contextlib.asynccontextmanager
async def run_calls(stack: NodeStack, identity: RunIdentity, say: Say) -> AsyncIterator[Rpc]:
    """The calls of a run while this block lasts: those of members alone, if it is closed."""
    if not identity.config.owner:
        yield stack.rpc
        return
    me = stack.identity.peer_id
    invitation = invitation_of(stack.config)
    ours = invitation is not None and invitation.run == identity.run
    token = invitation.token(me) if invitation is not None and ours else None
    door = RunDoor(identity.run, bytes.fromhex(identity.config.owner), identity.founder)
    if token is None and me.raw != identity.founder:
        raise Unusable(UNINVITED)
    gate = AccessGate(door, me.raw, token)
    async with GuardedRpc(stack.rpc, gate, RULES, time.time, say) as rpc:
        if stack.config.state is not None:
            folder = OwnerFolder(stack.config.state)
            _keep_lists(rpc, folder, identity.run)
            if stack.config.role == "trainer":
                folder.write_address(stack.endpoint.contact.address)
        yield rpc


def own_refusal(rpc: Rpc) -> str:
    """Return why this node left its closed run; empty if it is a member, or the run is open."""
    return rpc.gate.own_refusal(time.time()) if isinstance(rpc, GuardedRpc) else ""


async def until_out(rpc: Rpc) -> None:
    """Raise RunEnded when this node is no member of its closed run any more; until cancelled."""
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
