"""Nodes with real links and a DHT of their own, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from worlds.net import SimInternet

from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.addresses import Scope
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import encode
from p2pswarm.node.run.discovery import RECORD_S
from p2pswarm.node.stack.known_cards import KnownCards
from p2pswarm.node.stack.reachability_service import ReachabilityService
from p2pswarm.node.stack.stack import LOOK_AGAIN_S, NodeStack
from p2pswarm.reach.punch.observed_addresses_io import OutsideView
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.reach.relay.reservations_io import RelayKeeper
from p2pswarm.run.manifest import RUNS_KEY, RunIdentity, sign_manifest
from p2pswarm.run.messages.run import Manifest
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.sim.loop import run as run_simulated

RUN = RunConfig(
    name="ours",
    batch=BatchConfig(microbatches=2, rows=1),
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12),
)
EPOCH_S = 1e9
LONG_S = 120.0  # no test waits so long; a hang ends the test instead


class Clock:
    """A machine's clock, which may be wrong."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def __call__(self) -> float:
        return EPOCH_S + self.ahead_s + asyncio.get_running_loop().time()


class Town:
    """Nodes with real links and a DHT of their own on a simulated internet."""

    def __init__(self) -> None:
        self.rng = Random(1)
        self.internet = SimInternet(1)
        self.seed: Contact | None = None

    @asynccontextmanager
    async def node(self, clock: Clock | None = None) -> AsyncIterator[NodeStack]:
        rng, clock = self.rng, clock or Clock()
        identity = Identity.generate(rng.randbytes(32))
        net = self.internet.net(identity.peer_id)
        endpoint = Endpoint(identity, net, TransportConfig(), rng.randbytes)
        async with endpoint:
            await endpoint.listen(Address("0.0.0.0", 0))
            limits = DhtConfig(negative_s=LOOK_AGAIN_S)
            async with (
                LinkRpc(endpoint) as rpc,
                RelayKeeper(endpoint, rpc, CircuitNet(net)) as keeper,
                Dht(rpc, identity, limits, rng, clock) as dht,
            ):
                await dht.bootstrap([self.seed] if self.seed else [])
                self.seed = self.seed or endpoint.contact
                config, cards = NodeConfig(run=RUN), KnownCards(endpoint)
                view = OutsideView(endpoint, net, list)
                reachability = ReachabilityService(
                    endpoint, rpc, dht, keeper, cards, config, Scope.PRIVATE, view
                )
                yield NodeStack(config, identity, endpoint, rpc, dht, cards, keeper, reachability)


def identity_of(run: RunConfig = RUN) -> RunIdentity:
    return RunIdentity(run, bytes(32), bytes(16), b"f" * 32)


def manifest_of(stack: NodeStack, run: RunConfig = RUN) -> Manifest:
    """The manifest of a trainer's run, of the version that this program speaks."""
    where, card = stack.endpoint.contact.address, stack.endpoint.card.data
    return sign_manifest(stack.identity, identity_of(run), where, card)


async def put(stack: NodeStack, manifest: Manifest) -> None:
    await stack.dht.put(RUNS_KEY, stack.identity.peer_id.raw, encode(manifest), RECORD_S)


def play(story: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LONG_S):
            await story

    run_simulated(limited(), seed=1)
