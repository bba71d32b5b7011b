"""A node that only keeps its part of the DHT: others join through it."""

import asyncio

from p2pswarm.base.problems import Problems
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.node.owner_requests import OwnerRequests
from p2pswarm.node.stack.stack import NodeStack, Say
from p2pswarm.settings.node_config import NodeConfig


def prepare(_config: NodeConfig, _identity: Identity, _say: Say) -> None:
    """Return nothing: this role needs nothing."""


def check(_config: NodeConfig, _problems: Problems) -> None:
    """Find nothing wrong: this role has no settings of its own."""


async def run(
    _stack: NodeStack, _prepared: None, leaving: asyncio.Event, _say: Say, _owner: OwnerRequests
) -> None:
    """Stay until asked to leave."""
    await leaving.wait()
