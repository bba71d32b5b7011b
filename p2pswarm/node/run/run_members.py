"""A node's part in the directory of its run: what it says of itself, and what it takes from there.

Nothing is decided by it. A server that has lost its trainer asks the trainers that the directory
names, beside those that the DHT does; a standby that has no coordinator does the same.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from random import Random

from p2pswarm.base.ids import Contact
from p2pswarm.discovery.gossip.directory_io import Directories, DirectoryContext, RunDirectory
from p2pswarm.discovery.gossip.messages import RunRole
from p2pswarm.discovery.gossip.record import RoleKind
from p2pswarm.net.cards.card import Card
from p2pswarm.net.os.addresses import expected_of
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.node.stack.stack import NodeStack

SAMPLED_S = 1.0  # what a node says of itself is looked at; it is told when that matters
NAMED_MAX = 8  # trainers that are taken from a directory: anybody can say that it is one


@contextlib.asynccontextmanager
async def run_directory(stack: NodeStack, rpc: Rpc, run: bytes) -> AsyncIterator[RunDirectory]:
    """The directory of a run, while this block lasts; the first role of a node to come has it.

    `rpc`: the calls of the run, which in a closed one only members answer.
    """
    shared = stack.directories.get(run)
    if shared is not None:
        yield shared
        return

    def card() -> Card:
        return stack.endpoint.card

    least = expected_of(stack.endpoint.contact.address.host)
    chance = Random(os.urandom(32))
    around = DirectoryContext(rpc, stack.identity, card, chance, time.time, least)
    async with Directories(around) as directories, directories.open(run) as directory:
        directory.on_card = lambda card: stack.cards.learn(card.peer.raw, card.data, None)
        stack.directories[run] = directory
        try:
            yield directory
        finally:
            del stack.directories[run]


async def keep_saying(directory: RunDirectory, standing: Callable[[], RunRole]) -> None:
    """Tell the run what this node is in one role, as it changes; until cancelled."""
    role = standing().role
    try:
        while True:
            directory.set_role(standing())
            await asyncio.sleep(SAMPLED_S)
    finally:
        directory.withdraw(role)


def trainers_named(stack: NodeStack, run: bytes) -> list[Contact]:
    """Trainers of a run as its directory names them; none if this node has no part in it."""
    directory = stack.directories.get(run)
    return directory.contacts(RoleKind.TRAINER)[:NAMED_MAX] if directory else []
