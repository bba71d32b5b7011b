"""Asking the trainers of a swarm: `p2pswarm status` and `p2pswarm explain` print their answers.

Errors:  Unusable when nobody in the swarm answers, there is no such run, or clocks differ.
"""

import logging
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from p2pswarm.base.errors import SwarmError, Unusable
from p2pswarm.commands.status.texts import nothing_found
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run as run_loop
from p2pswarm.net.wire.message import Message
from p2pswarm.node.run.closed_run import run_calls
from p2pswarm.node.run.discovery import learn_cards, looked_up, manifests
from p2pswarm.node.run.run_choice import CLOCKS_DIFFER, RunChoice
from p2pswarm.node.stack.stack import NodeStack, open_stack
from p2pswarm.progress.printable import log_to_stderr
from p2pswarm.run.manifest import RunOffer
from p2pswarm.settings.config import NodeConfig, ServeConfig

NOBODY_SURE = "no run was found, and not all peers of this swarm answered: try again"
ANSWER_S = 5.0  # for a trainer to answer; several are asked at once
A = TypeVar("A", bound=Message)
F = TypeVar("F")

log = logging.getLogger(__name__)


def print_answers(config: NodeConfig, told: Callable[[NodeStack], Awaitable[str]]) -> int:
    """Join a swarm for a moment, and print what `told` finds out there; returns the exit code."""
    sys.stdout.write(found_out(config, told))
    return 0


def found_out(config: NodeConfig, asks: Callable[[NodeStack], Awaitable[F]]) -> F:
    """Join a swarm for a moment; returns what `asks` finds out there."""
    log_to_stderr(config.log_level)
    with identity_from(None) as identity:
        return run_loop(_found_out(config, identity, asks))


async def _found_out(
    config: NodeConfig, identity: Identity, asks: Callable[[NodeStack], Awaitable[F]]
) -> F:
    async with open_stack(config, identity, passing=True) as stack:
        return await asks(stack)


async def offers_of(stack: NodeStack, name: str) -> list[RunOffer]:
    """The trainers of the runs of this name (all, if it is empty)."""

    async def look() -> list[RunOffer]:
        return RunChoice(ServeConfig()).usable(await manifests(stack))

    offers = await looked_up(stack, look)
    wanted = [offer for offer in offers if name in ("", offer.config.name)]
    if not offers and stack.dht.clocks_differ:
        raise Unusable(CLOCKS_DIFFER)
    if not offers and stack.dht.unsure:
        raise Unusable(NOBODY_SURE)
    if not wanted:
        raise Unusable(nothing_found(name, [offer.config.name for offer in offers]))
    learn_cards(stack, wanted)
    return wanted


async def answer_of(
    stack: NodeStack, offer: RunOffer, question: Message, kind: type[A]
) -> A | None:
    """What a run's trainer answers; None if it does not, or with something else than `kind`."""
    try:
        async with run_calls(stack, offer.identity, log.warning) as rpc:
            answer = await rpc.call(offer.trainer, question, ANSWER_S)
    except SwarmError as error:
        log.info("%s did not answer: %s", offer.trainer.address, error)
        return None
    return answer if isinstance(answer, kind) else None
