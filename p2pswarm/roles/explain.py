"""The command `p2pswarm explain`: asks each trainer which stage limits its run, and who moves.

Units:   seconds.
Errors:  Unusable when nobody in the swarm answers, there is no such run, or clocks differ.
"""

import asyncio
import logging
import sys

from p2pswarm.config import NodeConfig
from p2pswarm.crypto.identity import Identity
from p2pswarm.crypto.key_file import identity_from
from p2pswarm.errors import SwarmError
from p2pswarm.net.event_loop import run as run_loop
from p2pswarm.progress.printable import log_to_stderr
from p2pswarm.roles.closed_run import run_calls
from p2pswarm.roles.explain_text import balance_lines, balances_as_json
from p2pswarm.roles.stack import NodeStack, open_stack
from p2pswarm.roles.status import ANSWER_S, offers_of
from p2pswarm.swarm.manifest import RunOffer
from p2pswarm.swarm.messages.balance import AskBalance, BalanceStatus

log = logging.getLogger(__name__)


def main(config: NodeConfig, name: str, *, json: bool) -> int:
    """Print who moves in the runs, or in the one that has this name; returns the exit code."""
    log_to_stderr(config.log_level)
    with identity_from(None) as identity:
        return run_loop(_main(config, identity, name, json=json))


async def _main(config: NodeConfig, identity: Identity, name: str, *, json: bool) -> int:
    async with open_stack(config, identity, passing=True) as stack:
        found = await balances(stack, name)
    if json:
        sys.stdout.write(balances_as_json(found) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for one in found for line in balance_lines(*one)))
    return 0


async def balances(stack: NodeStack, name: str) -> list[tuple[RunOffer, BalanceStatus | None]]:
    """The runs of this name (all, if it is empty), each with what its coordinator says."""
    offers = await offers_of(stack, name)
    answers = await asyncio.gather(*(_ask(stack, offer) for offer in offers))
    best: dict[bytes, tuple[RunOffer, BalanceStatus | None]] = {}
    for offer, status in zip(offers, answers, strict=True):
        known = best.get(offer.run, (offer, None))[1]
        if known is None or _newer(status, known):
            best[offer.run] = offer, status
    return list(best.values())


def _newer(status: BalanceStatus | None, known: BalanceStatus) -> bool:
    """Of a run's trainers, only the one that coordinates decides."""
    if status is None or status.asked_ago_s is None:
        return False
    return known.asked_ago_s is None or status.asked_ago_s < known.asked_ago_s


async def _ask(stack: NodeStack, offer: RunOffer) -> BalanceStatus | None:
    try:
        async with run_calls(stack, offer.identity, log.warning) as rpc:
            answer = await rpc.call(offer.trainer, AskBalance(offer.run), ANSWER_S)
    except SwarmError as error:
        log.info("%s did not answer: %s", offer.trainer.address, error)
        return None
    return answer if isinstance(answer, BalanceStatus) else None
