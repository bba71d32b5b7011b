"""The command `p2pswarm explain`: asks each trainer which stage limits its run, and who moves.

Errors:  Unusable when nobody in the swarm answers, there is no such run, or clocks differ.
"""

import asyncio

from p2pswarm.commands.status.ask import answer_of, offers_of, print_answers
from p2pswarm.commands.status.texts import balance_lines, balances_as_json
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.balance import AskBalance, BalanceStatus
from p2pswarm.settings.config import NodeConfig


def main(config: NodeConfig, name: str, *, json: bool) -> int:
    """Print who moves in the runs, or in the one that has this name; returns the exit code."""

    async def told(stack: NodeStack) -> str:
        found = await balances(stack, name)
        if json:
            return balances_as_json(found) + "\n"
        return "".join(f"{line}\n" for one in found for line in balance_lines(*one))

    return print_answers(config, told)


async def balances(stack: NodeStack, name: str) -> list[tuple[RunOffer, BalanceStatus | None]]:
    """The runs of this name (all, if it is empty), each with what its coordinator says."""
    offers = await offers_of(stack, name)
    asking = (answer_of(stack, one, AskBalance(one.run), BalanceStatus) for one in offers)
    answers = await asyncio.gather(*asking)
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
