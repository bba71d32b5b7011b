"""Asking a run's trainers what its servers have measured, for `p2pswarm plan --from`.

Errors:  Unusable when nobody answers, there is no such run or several, or nothing was measured.
"""

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.status.ask import answer_of, offers_of
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.progress.printable import printable
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.balance import (
    CAPACITIES_TOLD_MAX,
    AskCapacities,
    RunCapacities,
    ServerCapacity,
)
from p2pswarm.run.messages.types import MEMBERS_MAX

ANSWERS_MAX = MEMBERS_MAX // CAPACITIES_TOLD_MAX  # who tells less at a time holds us up

Servers = dict[bytes, ServerCapacity]


async def capacities(stack: NodeStack, name: str) -> tuple[RunOffer, list[ServerCapacity]]:
    """The run of this name, or the only one there is, and its servers in the order of their ids."""
    offers = await offers_of(stack, name)
    if len(runs := {offer.run: offer.config.name for offer in offers}) > 1:
        names = ", ".join(sorted({repr(printable(run)) for run in runs.values()}))
        raise Unusable(f"there are {len(runs)} runs, {names}: say which one with --run NAME")
    known: tuple[RunOffer, Servers] = offers[0], {}
    answered = False
    for offer in offers:  # a trainer that stands by knows nothing
        servers = await _servers(stack, offer)
        answered = answered or servers is not None
        if servers is not None and len(servers) > len(known[1]):
            known = offer, servers
    offer, found = known
    name = repr(printable(offer.config.name))
    if not answered:
        raise Unusable(f"no trainer of the run {name} answers: p2pswarm status may tell why")
    if not found:
        raise Unusable(
            f"nothing is known of the servers of the run {name} before its first step is done: ask "
            "again then, or describe the devices in a file (p2pswarm plan --example)"
        )
    return offer, [found[peer] for peer in sorted(found)]


async def _servers(stack: NodeStack, offer: RunOffer) -> Servers | None:
    """Return what one trainer tells, by peer; None if it does not answer."""
    servers: Servers = {}
    asked = 0
    for _ in range(ANSWERS_MAX):
        answer = await answer_of(stack, offer, AskCapacities(offer.run, asked), RunCapacities)
        if answer is None:
            return servers or None
        servers |= {one.peer: one for one in answer.servers if one.stage < offer.config.stages}
        asked += len(answer.servers)
        if not answer.servers or asked >= answer.total:
            break
    return servers
