"""Watching a run from another machine: its trainer is asked again and again.

Errors:  Unusable if nobody answers, or no one run is meant.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from p2pswarm.base.errors import Unusable
from p2pswarm.base.exit_codes import INTERRUPTED
from p2pswarm.checkpoint.names import RUN_HEX
from p2pswarm.commands.status.ask import answer_of, found_out, statuses
from p2pswarm.commands.status.texts import as_lines
from p2pswarm.commands.watch.distant_run import ASK_EVERY_S, DistantRun
from p2pswarm.commands.watch.watch import show, take_interrupts
from p2pswarm.node.progress.common_events import begun
from p2pswarm.node.progress.output import terminal
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.progress.event_lines import EventLine, EventNumbers
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.balance import AskCapacities, RunCapacities
from p2pswarm.run.messages.status import AskStatus, RunStatus
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.page_config import PageConfig


def main(config: NodeConfig, name: str, *, page: PageConfig) -> int:
    """Show a run that goes on elsewhere; returns the exit code."""
    console = terminal()

    async def watch(stack: NodeStack) -> None:
        await show(events_of(stack, name), console, page, time.time)

    take_interrupts()
    try:
        found_out(config, watch)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


async def events_of(stack: NodeStack, name: str) -> AsyncIterator[EventLine]:
    """The events of the one run of this name (any, if it is empty), until it is over."""
    offer, status = await _chosen(stack, name)
    numbers = EventNumbers(offer.run.hex()[:RUN_HEX], _by(offer), time.time)
    yield numbers.stamp(begun(offer.config, "trainer", _by(offer), done=status.done))
    distant = DistantRun()
    while True:
        listed = await answer_of(stack, offer, AskCapacities(offer.run), RunCapacities)
        servers = listed.servers if listed is not None else ()
        for event in distant.on_answer(status, servers):
            yield numbers.stamp(event)
        if status.ended:
            return
        await asyncio.sleep(ASK_EVERY_S)
        answer = await answer_of(stack, offer, AskStatus(offer.run), RunStatus)
        if answer is None:  # another trainer may lead by now
            for other, said in await statuses(stack, offer.config.name):
                if other.run == offer.run and said is not None:
                    offer, answer = other, said
        status = answer or status


async def _chosen(stack: NodeStack, name: str) -> tuple[RunOffer, RunStatus]:
    """The one run that is meant, and how it stands."""
    found = await statuses(stack, name)
    if len(found) > 1:
        names = ", ".join(repr(offer.config.name) for offer, _ in found)
        raise Unusable(f"this swarm has several runs: name one with --run: {names}")
    offer, status = found[0]
    if status is None:
        raise Unusable("\n".join(as_lines(offer, None)[1:]).strip())
    return offer, status


def _by(offer: RunOffer) -> str:
    return "afar" if offer.trainer.peer is None else offer.trainer.peer.short
