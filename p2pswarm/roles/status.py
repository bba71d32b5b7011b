"""The command `p2pswarm status`: looks up the runs of a swarm and asks each trainer how its run is.

Units:   seconds.
Errors:  Unusable when nobody in the swarm answers, there is no such run, or clocks differ.
"""

import asyncio
import logging
import sys
from collections.abc import Iterable

from p2pswarm.config import NodeConfig, ServeConfig
from p2pswarm.crypto.identity import Identity
from p2pswarm.crypto.key_file import identity_from
from p2pswarm.errors import SwarmError, Unusable
from p2pswarm.net.event_loop import run as run_loop
from p2pswarm.progress.printable import log_to_stderr
from p2pswarm.roles.closed_run import run_calls
from p2pswarm.roles.discovery import learn_cards, manifests
from p2pswarm.roles.run_choice import CLOCKS_DIFFER, RunChoice
from p2pswarm.roles.stack import NodeStack, open_stack
from p2pswarm.roles.status_text import as_json, as_lines, nothing_found, reached_at
from p2pswarm.swarm.manifest import RunOffer
from p2pswarm.swarm.messages.status import AskStatus, RunStatus

ANSWER_S = 5.0  # for a trainer to answer; several are asked at once

log = logging.getLogger(__name__)

Found = list[tuple[RunOffer, RunStatus | None]]


def main(config: NodeConfig, name: str, *, json: bool) -> int:
    """Print how the runs stand, or the one that has this name; returns the exit code."""
    log_to_stderr(config.log_level)
    with identity_from(None) as identity:
        return run_loop(_main(config, identity, name, json=json))


async def _main(config: NodeConfig, identity: Identity, name: str, *, json: bool) -> int:
    async with open_stack(config, identity, passing=True) as stack:
        found = await statuses(stack, name)
    if json:
        sys.stdout.write(as_json(found) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for one in found for line in as_lines(*one)))
    return 0


async def statuses(stack: NodeStack, name: str) -> Found:
    """The runs of this name (all, if it is empty), each with what its trainer says."""
    wanted = await offers_of(stack, name)
    answers = await asyncio.gather(*(_ask(stack, offer) for offer in wanted))
    reached = [reached_at(offer, stack.endpoint.seen_at) for offer in wanted]
    return one_a_run(zip(reached, answers, strict=True))


async def offers_of(stack: NodeStack, name: str) -> list[RunOffer]:
    """The trainers of the runs of this name (all, if it is empty)."""
    offers = RunChoice(ServeConfig()).usable(await manifests(stack))
    wanted = [offer for offer in offers if name in ("", offer.config.name)]
    if not offers and stack.dht.clocks_differ:
        raise Unusable(CLOCKS_DIFFER)
    if not wanted:
        raise Unusable(nothing_found(name, [offer.config.name for offer in offers]))
    learn_cards(stack, wanted)
    return wanted


def one_a_run(found: Iterable[tuple[RunOffer, RunStatus | None]]) -> Found:
    """Of a run's trainers, the one that knows most: standbys know less than the coordinator."""
    best: dict[bytes, tuple[RunOffer, RunStatus | None]] = {}
    for offer, status in found:
        known = best.get(offer.run, (offer, None))[1]
        if known is None or (status is not None and _knows(status) > _knows(known)):
            best[offer.run] = offer, status
    return list(best.values())


def _knows(status: RunStatus) -> tuple[int, int]:
    return status.done, sum(stage.ready + stage.joining for stage in status.stages)


async def _ask(stack: NodeStack, offer: RunOffer) -> RunStatus | None:
    try:
        async with run_calls(stack, offer.identity, log.warning) as rpc:
            answer = await rpc.call(offer.trainer, AskStatus(offer.run), ANSWER_S)
    except SwarmError as error:
        log.info("%s did not answer: %s", offer.trainer.address, error)
        return None
    return answer if isinstance(answer, RunStatus) else None
