"""PartSearch: greets strangers, who may have been in another part of the DHT.

What is another part, and when it is looked at, is in `reunion.py` and `joining.py`.

Units:   seconds on the loop's clock.
Errors:  none: a stranger that does not answer has nothing to tell.
"""

import asyncio
import logging

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.joining import met_through, unknown_neighbours
from p2pswarm.discovery.dht.messages import Identify
from p2pswarm.discovery.dht.query_runner import QueryRunner
from p2pswarm.discovery.dht.reunion import Reunion
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.upkeep import Upkeep

log = logging.getLogger(__name__)

HELLO_S = 3.0  # to dial a seed that may be dead or far away, and to get its answer


class PartSearch:
    """One node's search for parts of the DHT that it does not know."""

    def __init__(
        self,
        table: Table,
        runner: QueryRunner,
        upkeep: Upkeep,
        reunion: Reunion,
    ) -> None:
        self._table = table
        self._runner = runner
        self._upkeep = upkeep
        self._reunion = reunion

    async def greet(self, stranger: Contact) -> list[Contact]:
        """Ask a stranger whom it knows next to us; it and these, if we do not know them."""
        runner, hello = self._runner, Identify(self._table.own.raw)
        try:
            reply = await runner.rpc.call(stranger, hello, HELLO_S)
            met = met_through(stranger, reply, runner.recorder.hearsay)
        except SwarmError as error:
            log.info("%s: %s", stranger.address, error)
            return []
        return met if self.met(met) else []

    def met(self, met: list[Contact]) -> bool:
        """Whether the first of these names neighbours that we do not know: look everywhere then."""
        unknown = unknown_neighbours(met, self._table)
        if unknown and self._reunion.merges([met[0], *unknown], self._now_s()):
            self._upkeep.merge()
        return bool(unknown)

    @property
    def others(self) -> list[Contact]:
        """Who has named another part a short time ago, and those whom it named."""
        return list(self._reunion.others(self._now_s()))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
