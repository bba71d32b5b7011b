"""The stages of a run in its trainer's own process: one machine trains by one command.

Each stage has a server of its own, a node like any other with a key and a port of its own. So
servers that come later see no difference: they take over load, or a stage when this machine is
slow. Such a server begins with its stage, and may move to another one as the run finds better.
"""

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import AsyncIterator

import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.node.run.closed_run import run_calls
from p2pswarm.node.run.owner_folder import OwnerFolder
from p2pswarm.node.run.run_choice import run_choice
from p2pswarm.node.run.run_members import run_directory
from p2pswarm.node.serve import StageThreads, chosen_device, serve_run, stage_server
from p2pswarm.node.shutdown import LeaveRequest
from p2pswarm.node.stack.addresses import EVERY_HOST
from p2pswarm.node.stack.stack import NodeStack, Say, open_stack
from p2pswarm.node.stage_engine import keep_freed_memory
from p2pswarm.run.access.grant import ROLES, GrantTerms
from p2pswarm.run.access.invitation import as_text, invite_peer
from p2pswarm.run.access.messages import GRANT_MAX_S
from p2pswarm.run.manifest import RunIdentity, RunOffer
from p2pswarm.settings.config import EMULATED, PRETRAINED
from p2pswarm.settings.node_config import TARGETS_MAX, NodeConfig, ServeConfig

LOOPBACK = {"::": "::1", "0.0.0.0": "127.0.0.1"}  # noqa: S104  where a node is that listens everywhere
SERVERS_MAX = 64  # of one process: more stages than devices only cost time


@contextlib.asynccontextmanager
async def stages_here(stack: NodeStack, run: RunIdentity, say: Say) -> AsyncIterator[None]:
    """Serve every stage of the run while this block lasts; Unusable if that cannot be done."""
    config = stack.config
    count = run.config.stages * run.config.min_replicas
    if count > SERVERS_MAX:
        raise Unusable(
            f"--alone would begin {count} servers in this process, {SERVERS_MAX} are allowed: "
            "lower run.stages or run.min_replicas, or start servers on other machines"
        )
    if run.config.emulated:
        serve = dataclasses.replace(config.serve, device=EMULATED)
        config = dataclasses.replace(config, serve=serve)
    device = chosen_device(config.serve)
    keep_freed_memory()
    async with asyncio.TaskGroup() as tasks:
        serving = [
            tasks.create_task(_serve_stage(stack, config, run, number, device, say))
            for number in range(count)
        ]
        yield
        for task in serving:
            task.cancel()


async def _serve_stage(
    stack: NodeStack,
    config: NodeConfig,
    run: RunIdentity,
    number: int,
    device: torch.device,
    say: Say,
) -> None:
    """One server, to the end of the run."""
    identity = Identity.generate(os.urandom(32))
    stage = number % run.config.stages
    threads = StageThreads()
    try:
        async with open_stack(_node(stack, config, run, identity, stage), identity) as node:
            offer = RunOffer(
                run.run, run.config, stack.endpoint.contact, run, stack.endpoint.card.data
            )
            node.cards.learn(stack.identity.peer_id.raw, offer.card, None)
            choice = run_choice(node.config, identity.peer_id)
            async with (
                run_calls(node, run, say) as rpc,
                run_directory(node, rpc, run.run),
            ):
                server = stage_server(node, offer, threads, device, rpc, say)
                end = await serve_run(node, rpc, choice, server, offer, LeaveRequest(), say)
        if isinstance(end, Unusable):
            raise end
    finally:
        threads.close()


def _node(
    stack: NodeStack, config: NodeConfig, run: RunIdentity, identity: Identity, stage: int
) -> NodeConfig:
    """The settings of the node of one stage: the trainer's, without what only one node may have."""
    serve = dataclasses.replace(
        own_files(config), run=run.config.name, stage=None, planned_stage=stage
    )
    network = dataclasses.replace(
        config.network, announce="", relay_port=0, relay_web=0, relay_certificate=None
    )
    return dataclasses.replace(
        config,
        role="stage",
        listen=_beside(stack),
        bootstrap=(str(_own_place(stack)),),
        identity=None,
        state=None,
        invite=_invitation(stack, run, identity),
        serve=serve,
        network=network,
    )


def own_files(config: NodeConfig) -> ServeConfig:
    """The settings of a server that may read and write what its trainer's own settings name."""
    serve, model = config.serve, config.run.model
    targets = dict.fromkeys((*serve.checkpoint_targets, config.checkpoint.target))
    serve = dataclasses.replace(
        serve, checkpoint_targets=tuple(each for each in targets if each)[:TARGETS_MAX]
    )
    if config.run.start != PRETRAINED or serve.pretrained is not None or serve.hub:
        return serve
    if model.folder is not None and model.folder.is_dir():
        return dataclasses.replace(serve, pretrained=model.folder)
    return dataclasses.replace(serve, hub=model.hub)


def _own_place(stack: NodeStack) -> Address:
    """Where a node of the same machine dials the trainer's."""
    first = stack.endpoint.listening[0]
    return Address(LOOPBACK.get(first.host, first.host), first.port)


def _beside(stack: NodeStack) -> str:
    """Where a node listens that others reach as they reach the trainer's: at another port."""
    host = stack.endpoint.listening[0].host
    return ":0" if host in EVERY_HOST else str(Address(host, 0))


def _invitation(stack: NodeStack, run: RunIdentity, identity: Identity) -> str:
    """The invitation of a server to a closed run, whose owner's key the trainer keeps."""
    if not run.config.closed:
        return ""
    state = stack.config.state
    if state is None:
        raise Unusable(
            "--alone in a closed run needs its owner's key: set `state` to the folder that has it"
        )
    now_s = int(time.time())
    terms = GrantTerms(ROLES["serve"], now_s, now_s + GRANT_MAX_S, 1)
    with OwnerFolder(state).key() as owner:
        if owner.public_key.hex() != run.config.owner:
            raise Unusable("--alone: only the owner's own trainer may serve its closed run itself")
        return as_text(invite_peer(owner, run.run, terms, identity.peer_id))
