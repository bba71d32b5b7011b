"""Asking the trainers of a swarm how their runs stand, which stage limits them, and who moves.

Errors:  NobodyAnswers where nobody knows; Unusable if there is no such run, or clocks differ.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from p2pswarm.base.errors import SwarmError, Unusable
from p2pswarm.base.transient_errors import NobodyAnswers
from p2pswarm.commands.arguments import say
from p2pswarm.commands.status.step_texts import why_lines
from p2pswarm.commands.status.texts import (
    as_json,
    as_lines,
    balance_lines,
    balances_as_json,
    nobody_knows,
    nothing_found,
    reached_at,
)
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run as run_loop
from p2pswarm.net.wire.message import Message
from p2pswarm.node.run.closed_run import run_calls
from p2pswarm.node.run.discovery import affordable, learn_cards, looked_up, manifests
from p2pswarm.node.run.run_choice import CLOCKS_DIFFER, RunChoice
from p2pswarm.node.stack.addresses import seeds
from p2pswarm.node.stack.stack import NodeStack, open_stack
from p2pswarm.progress.printable import log_to_stderr
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.balance import AskBalance, BalanceStatus
from p2pswarm.run.messages.status import AskStatus, RunStatus
from p2pswarm.run.messages.waits import AskWhy, RunWhy
from p2pswarm.settings.node_config import NodeConfig, ServeConfig

NOBODY_SURE = "no run was found, and not all peers of this swarm answered: try again"
ANSWER_S = 5.0  # for a trainer to answer; several are asked at once
A = TypeVar("A", bound=Message)
F = TypeVar("F")

log = logging.getLogger(__name__)


def main(command: str, config: NodeConfig, name: str, *, json: bool) -> int:
    """Print what is found out of all runs, or the one of this name; returns the exit code."""

    async def text(stack: NodeStack) -> str:
        if command == "status":
            stand = await statuses(stack, name)
            return as_json(stand) if json else _joined(as_lines(*one) for one in stand)
        found = await balances(stack, name)
        whys = {offer.run: why for offer, why in await reasons(stack, name)}
        if json:
            return balances_as_json(found, whys)
        each = ((offer, status, whys.get(offer.run)) for offer, status in found)
        return _joined(
            [*balance_lines(offer, status), *why_lines(why)] for offer, status, why in each
        )

    say(found_out(config, text))
    return 0


def _joined(runs: Iterable[list[str]]) -> str:
    return "\n".join(line for lines in runs for line in lines)


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
        raise NobodyAnswers(NOBODY_SURE)
    if not offers and _alone(stack):
        raise NobodyAnswers(nobody_knows(stack.config.bootstrap))
    if not wanted:
        raise Unusable(nothing_found(name, [offer.config.name for offer in offers]))
    return _asked(stack, wanted)


def _asked(stack: NodeStack, offers: list[RunOffer]) -> list[RunOffer]:
    """The offers whose trainers may be asked: strangers wrote where these are to be found."""
    learn_cards(stack, offers)
    known = {link.remote for link in stack.endpoint.links() if link.session.dialled}
    may_ask = affordable(stack.rpc, [offer.trainer for offer in offers], known)
    asked = [offer for offer in offers if offer.trainer in may_ask]
    if left_out := len(offers) - len(asked):
        log.warning(
            "%d trainers are not asked, because others are said to be at the same places: "
            "--run NAME asks those of one run",
            left_out,
        )
    return asked


def _alone(stack: NodeStack) -> bool:
    """Return whether nobody is there but the nodes that we ask through.

    Nobody can tell then whether there is a run: they may have been started again a moment ago.
    """
    asked = {seed.address for seed in seeds(stack.config)}
    return all(neighbour.contact.address in asked for neighbour in stack.dht.table)


async def answer_of(
    stack: NodeStack, offer: RunOffer, question: Message, kind: type[A]
) -> A | None:
    """A run's trainer's answer; None if it gives none, or something else than `kind`."""
    try:
        async with run_calls(stack, offer.identity, log.warning) as rpc:
            answer = await rpc.call(offer.trainer, question, ANSWER_S)
    except SwarmError as error:
        log.info("%s did not answer: %s", offer.trainer.address, error)
        return None
    return answer if isinstance(answer, kind) else None


async def statuses(stack: NodeStack, name: str) -> list[tuple[RunOffer, RunStatus | None]]:
    """The runs of this name (all, if it is empty), each with what its trainer says."""
    offers = await offers_of(stack, name)
    asking = (answer_of(stack, one, AskStatus(one.run), RunStatus) for one in offers)
    answers = await asyncio.gather(*asking)
    reached = [reached_at(offer, stack.endpoint.dialled_at) for offer in offers]
    return one_a_run(zip(reached, answers, strict=True), _knows)


async def balances(stack: NodeStack, name: str) -> list[tuple[RunOffer, BalanceStatus | None]]:
    """The runs of this name (all, if it is empty), each with what its coordinator says."""
    offers = await offers_of(stack, name)
    asking = (answer_of(stack, one, AskBalance(one.run), BalanceStatus) for one in offers)
    answers = await asyncio.gather(*asking)
    return one_a_run(zip(offers, answers, strict=True), _newness)


async def reasons(stack: NodeStack, name: str) -> list[tuple[RunOffer, RunWhy | None]]:
    """The runs of this name (all, if it is empty), each with where its seconds go."""
    offers = await offers_of(stack, name)
    asking = (answer_of(stack, one, AskWhy(one.run), RunWhy) for one in offers)
    answers = await asyncio.gather(*asking)
    return one_a_run(zip(offers, answers, strict=True), lambda why: (why.step,))


def one_a_run(
    found: Iterable[tuple[RunOffer, A | None]], rank: Callable[[A], tuple[float, ...]]
) -> list[tuple[RunOffer, A | None]]:
    """Of each run's trainers the first whose answer has the highest rank."""
    best: dict[bytes, tuple[RunOffer, A | None]] = {}
    for offer, answer in found:
        known = best.get(offer.run, (offer, None))[1]
        if known is None or (answer is not None and rank(answer) > rank(known)):
            best[offer.run] = offer, answer
    return list(best.values())


def _knows(status: RunStatus) -> tuple[float, ...]:
    """Standbys know less than the coordinator."""
    return status.done, sum(stage.ready + stage.joining for stage in status.stages)


def _newness(status: BalanceStatus) -> tuple[float, ...]:
    """Only the trainer that coordinates decides."""
    return () if status.asked_ago_s is None else (-status.asked_ago_s,)
