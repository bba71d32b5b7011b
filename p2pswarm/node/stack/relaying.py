"""What a node does with relays: it is one, or it is reachable through some.

Units:   seconds.
Errors:  Unusable, in one line with the remedy, for a port that cannot be used, and for relays of
         which none answers.
"""

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.node.stack.addresses import relays
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.reach.relay.keeper import RelayKeeper
from p2pswarm.reach.relay.relay import Relay, RelayRates
from p2pswarm.reach.relay.relay_table import RelayLimits
from p2pswarm.settings.config import NodeConfig

REACHABLE_S = 10.0  # a dial and a handshake, each with its own limit
SOCKETS = 2  # of a circuit
BYTES_PER_MB = 1e6


def is_relay(config: NodeConfig) -> bool:
    """Whether this node passes on bytes; one that is behind relays itself does not."""
    return config.network.relay and not config.network.relays


def circuit_files(config: NodeConfig) -> int:
    """How many open files circuits may take."""
    return SOCKETS * RelayLimits().circuits_max if is_relay(config) else 0


@contextlib.asynccontextmanager
async def relaying(
    endpoint: Endpoint,
    rpc: LinkRpc,
    net: CircuitNet,
    config: NodeConfig,
    share: float = 1.0,
    reachable_s: float = REACHABLE_S,
) -> AsyncIterator[RelayKeeper]:
    """Be a relay, or reachable through those that the user has named, while this block lasts.

    The value keeps reservations; without relays of the user it has none until it is offered some.

    `share`: of the usual circuits, where this process may open few files. `reachable_s`: so long
    relays have to take us.
    """
    through = relays(config)
    async with contextlib.AsyncExitStack() as blocks:
        keeper = await blocks.enter_async_context(RelayKeeper(endpoint, rpc, net))
        if through:
            await _reach(keeper, endpoint, through, reachable_s)
        elif is_relay(config):
            rates = RelayRates(total_bytes_per_s=config.network.relay_mb_s * BYTES_PER_MB)
            relay = Relay(endpoint, rpc, os.urandom, fitted_limits(share), rates)
            await blocks.enter_async_context(relay)
        await _listen_elsewhere(endpoint, config, blocks)
        yield keeper


def fitted_limits(share: float) -> RelayLimits:
    """The usual limits, with a share of the circuits."""
    usual = RelayLimits()
    return replace(
        usual,
        circuits_max=max(1, int(usual.circuits_max * share)),
        network_circuits_max=max(1, int(usual.network_circuits_max * share)),
    )


async def _reach(
    keeper: RelayKeeper, endpoint: Endpoint, through: tuple[Contact, ...], reachable_s: float
) -> None:
    """Be reachable through some of these relays, and announce the first one's address."""
    keeper.offer(through)
    try:
        async with asyncio.timeout(reachable_s):
            await keeper.reachable()
    except TimeoutError:
        raise Unusable(
            f"network.relays: none of {', '.join(str(each.address) for each in through)} takes us"
            f" within {reachable_s:g} s: {keeper.trouble}"
        ) from None
    endpoint.announced = keeper.addresses[0]


async def _listen_elsewhere(
    endpoint: Endpoint, config: NodeConfig, blocks: contextlib.AsyncExitStack
) -> None:
    """Listen on the second port and for WebSocket, if the user wants that."""
    network, host = config.network, endpoint.listening[0].host
    if network.relay_port:
        try:
            await endpoint.listen(Address(host, network.relay_port))
        except Unusable as error:
            raise Unusable(f"network.relay_port: {error}{_remedy(network.relay_port)}") from error
    if network.relay_web:
        web_socket = await asyncio.to_thread(importlib.import_module, "p2pswarm.net.os.web_socket")
        at = Address(host, network.relay_web)
        listener = web_socket.WebListener(at, endpoint.accept, network.relay_certificate)
        try:
            await blocks.enter_async_context(listener)
        except Unusable as error:
            raise Unusable(f"network.relay_web: {error}{_remedy(network.relay_web)}") from error


def _remedy(port: int) -> str:
    privileged = 1024
    return (
        "; ports below 1024 are root's: choose another, or let this Python have them with setcap"
        if port < privileged
        else ""
    )
