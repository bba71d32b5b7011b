"""Finding a run, and letting others find ours: a manifest in the DHT under a well-known key.

Units:   seconds.
Errors:  those of the DHT are logged, and the next look is taken all the same.
"""

import asyncio
import logging
from collections.abc import Callable

from p2pswarm.errors import SwarmError
from p2pswarm.ids import Contact
from p2pswarm.roles.run_choice import RunChoice
from p2pswarm.roles.stack import LOOK_AGAIN_S, NodeStack
from p2pswarm.rpc.base import Rpc
from p2pswarm.swarm.manifest import RUNS_KEY, RunOffer
from p2pswarm.swarm.messages.run import Manifest, OtherVersion
from p2pswarm.wire.message import encode

log = logging.getLogger(__name__)

RECORD_S = 60.0  # a run whose trainer died is offered no longer than this
TRY_AGAIN_S = 1.0  # somebody waits for it
TELL_S = 2.0  # for a trainer of another version to answer; a run that is found waits no longer


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


async def find_run(stack: NodeStack, choice: RunChoice, say: Callable[[str], None]) -> RunOffer:
    """Look the runs up until there is one to join; the DHT knows no other way to wait.

    Trainers of another version are told so meanwhile.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        while True:
            try:
                records = await stack.dht.get(RUNS_KEY)
            except SwarmError as error:
                log.info("the runs could not be looked up: %s", error)
                records = {}
            offer = choice.choose({subkey: record.value for subkey, record in records.items()})
            for remark in choice.remarks():
                say(remark)
            for trainer in choice.to_be_told(loop.time()):
                tasks.create_task(_tell_version(stack.rpc, trainer, choice.version))
            if offer is not None:
                return offer
            await asyncio.sleep(LOOK_AGAIN_S)


async def _tell_version(rpc: Rpc, trainer: Contact, version: int) -> None:
    """Tell a trainer that we cannot join its run; that it does not listen is its own matter."""
    try:
        await rpc.call(trainer, OtherVersion(version), TELL_S)
    except SwarmError as error:
        log.info("%s was not told that we speak another version: %s", trainer.address, error)
