"""Finding a run, and letting others find ours: a manifest in the DHT under a well-known key.

Units:   seconds.
Errors:  those of the DHT; a manifest that cannot be used is named once and passed over.
"""

import asyncio
import logging
from collections.abc import Callable

from p2pswarm.errors import BadMessage, SwarmError
from p2pswarm.roles.stack import LOOK_AGAIN_S, NodeStack
from p2pswarm.swarm.manifest import RUNS_KEY, RunOffer, read_offer
from p2pswarm.swarm.messages.run import Manifest
from p2pswarm.wire.message import decode, encode

log = logging.getLogger(__name__)

RECORD_S = 60.0  # a run whose trainer died is offered no longer than this
TRY_AGAIN_S = 1.0  # somebody waits for it


async def announce(stack: NodeStack, manifest: Manifest) -> None:
    """Put our run into the DHT, which publishes it again in time; until cancelled."""
    subkey = stack.identity.peer_id.raw
    try:
        while True:
            try:
                await stack.dht.put(RUNS_KEY, subkey, encode(manifest), RECORD_S)
            except SwarmError as error:
                log.warning("the run could not be announced: %s", error)
                await asyncio.sleep(TRY_AGAIN_S)
            else:
                await asyncio.Event().wait()
    finally:
        stack.dht.withdraw(RUNS_KEY, subkey)


class RunSearch:
    """Looks for a run to join; remembers what it has complained about."""

    def __init__(self, stack: NodeStack, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._say = say
        self._told: set[str] = set()
        self._over: set[bytes] = set()

    def over(self, offer: RunOffer) -> None:
        """That run has ended: its record may outlive it for a while."""
        self._over.add(offer.run + _trainer(offer))
        self._told.clear()

    async def run(self, name: str) -> RunOffer:
        """Wait for a run of that name, or for any."""
        while True:
            offers = await self._offers()
            fitting = [o for o in offers if name in ("", o.config.name)]
            if fitting:
                return fitting[0]
            if offers:
                there = ", ".join(sorted({repr(o.config.name) for o in offers}))
                self._tell(f"no run is named {name!r}; there is {there}: waiting")
            else:
                self._tell("there is no run yet: waiting for a trainer")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _offers(self) -> list[RunOffer]:
        """Every run in the DHT, by trainer."""
        try:
            records = await self._stack.dht.get(RUNS_KEY)
        except SwarmError as error:
            log.info("the runs could not be looked up: %s", error)
            return []
        offers = []
        for subkey in sorted(records):
            try:
                offer = _offer(subkey, records[subkey].value)
            except BadMessage as error:
                self._tell(f"a run cannot be joined: {error}")
                continue
            if offer.run + _trainer(offer) not in self._over:
                offers.append(offer)
        return offers

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def _trainer(offer: RunOffer) -> bytes:
    assert offer.trainer.peer is not None
    return offer.trainer.peer.raw


def _offer(subkey: bytes, value: bytes) -> RunOffer:
    manifest = decode(value)
    if not isinstance(manifest, Manifest):
        raise BadMessage(f"a record with a {type(manifest).__name__} for a manifest")
    offer = read_offer(manifest)
    if _trainer(offer) != subkey:
        raise BadMessage("a manifest under another peer's name")
    return offer
