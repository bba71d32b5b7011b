"""The command `p2pswarm status`: asks the trainer of each run of a swarm how it stands."""

import asyncio
from collections.abc import Iterable

from p2pswarm.commands.status.ask import answer_of, offers_of, print_answers
from p2pswarm.commands.status.texts import as_json, as_lines, reached_at
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.status import AskStatus, RunStatus
from p2pswarm.settings.config import NodeConfig

Found = list[tuple[RunOffer, RunStatus | None]]


def main(config: NodeConfig, name: str, *, json: bool) -> int:
    """Print how the runs stand, or the one that has this name; returns the exit code."""

    async def told(stack: NodeStack) -> str:
        found = await statuses(stack, name)
        if json:
            return as_json(found) + "\n"
        return "".join(f"{line}\n" for one in found for line in as_lines(*one))

    return print_answers(config, told)


async def statuses(stack: NodeStack, name: str) -> Found:
    """The runs of this name (all, if it is empty), each with what its trainer says."""
    wanted = await offers_of(stack, name)
    asking = (answer_of(stack, one, AskStatus(one.run), RunStatus) for one in wanted)
    answers = await asyncio.gather(*asking)
    reached = [reached_at(offer, stack.endpoint.seen_at) for offer in wanted]
    return one_a_run(zip(reached, answers, strict=True))


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
