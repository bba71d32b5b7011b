"""`p2pswarm plan --from HOST:PORT`: where the servers of a living swarm would serve best.

Errors:  Unusable when nobody answers, there is no such run or several, nothing was measured, or no
         plan can be made of a run.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target
from p2pswarm.base.ids import PeerId
from p2pswarm.commands.arguments import say
from p2pswarm.commands.plan.devices import PlanAnswer, lines, load_of, plan_of, write_plan
from p2pswarm.commands.status.ask import answer_of, found_out, offers_of
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.plan.codec_costs import CODECS
from p2pswarm.plan.device_file import PlanOptions
from p2pswarm.plan.fleet import MeasuredFleet, MeasuredServer, measured_fleet
from p2pswarm.plan.pipeline_annealing import Draft
from p2pswarm.plan.pipeline_cost import StepCost, step_cost
from p2pswarm.progress.printable import printable
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.balance import (
    CAPACITIES_TOLD_MAX,
    AskCapacities,
    RunCapacities,
    ServerCapacity,
)
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig

NAMES_MAX = 16  # of a stage, in the lines for people; --json has all
ANSWERS_MAX = MEMBERS_MAX // CAPACITIES_TOLD_MAX  # who tells less at a time holds us up
OWN_CODEC = "bf16"  # counts for a codec that the planner has no numbers of

Servers = dict[bytes, ServerCapacity]


@dataclass(frozen=True, slots=True, eq=False)
class LivingPlan:
    """The best arrangement of servers that was found, and the present one."""

    answer: PlanAnswer
    measured: MeasuredFleet
    now: StepCost
    """Of the present arrangement, by the same model."""


def main(
    config: NodeConfig,
    name: str,
    seconds: float,
    seed: int,
    json_out: Path | None,
    folder: Path | None,
) -> int:
    """Ask, search, and print what was found; returns the exit code."""
    if json_out is not None:
        check_target(json_out)
    offer, told = found_out(config, functools.partial(capacities, name=name))
    found = living_plan(offer.config, told, seconds, seed)
    say("\n".join(living_lines(found)))
    more = {"seconds_per_step_now": found.now.seconds}
    write_plan(found.answer, json_out, folder, more)
    return 0


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


def living_plan(
    run: RunConfig, told: Sequence[ServerCapacity], seconds: float, seed: int
) -> LivingPlan:
    """The best plan for the servers of a run that is found in the time."""
    known = {codec.name for codec in CODECS}
    ways = run.codecs.activation, run.codecs.gradient
    codec = "/".join(each if each in known else OWN_CODEC for each in ways)
    options = PlanOptions(codecs=(codec,), connections=1, working_gib=0.0)
    blocks = [stage_blocks(run, stage) for stage in range(run.stages)]
    load = load_of(run, options)
    flops_s = [float(load.flops_k[each.start : each.stop].sum()) for each in blocks]
    servers = [
        MeasuredServer(PeerId(one.peer).short, one.stage, one.capacity.measured, one.rtt_s)
        for one in told
    ]
    measured = measured_fleet(_named_apart(servers, told), flops_s)
    stage_n = np.array([one.stage for one in told], dtype=np.int64)
    borders = np.array([0, *accumulate(len(each) for each in blocks)], dtype=np.int64)
    present = Draft(stage_n, borders)
    now = step_cost(measured.fleet, load, present)
    answer = plan_of(run, options, measured.fleet, seconds, seed, present)
    return LivingPlan(answer, measured, now)


def living_lines(found: LivingPlan) -> list[str]:
    """Return what was found, for people."""
    best, now, measured = found.answer.plan.seconds, found.now.seconds, found.measured
    count = len(measured.fleet.names)
    faster = (
        f"{now:.3f} s a step by this reckoning; the plan: {100 * (now / best - 1):+.0f} % speed"
    )
    if now == math.inf:
        faster = "no step at all, because a stage has no server"
    text = [f"{count} servers as they are now: {faster}"]
    for count, what in (
        (measured.rates_guessed, "computing is not measured yet, and counts as the usual one's"),
        (measured.lines_guessed, "line is not measured yet, and counts as the usual one"),
        (measured.memories_guessed, "memory is not known, and counts as enough"),
    ):
        if count:
            text.append(f"  of {count} servers: the {what}")
    text += lines(found.answer)
    for stage, devices in enumerate(found.answer.plan.stages):
        names = [measured.fleet.names[device] for device in devices]
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        text.append(f"  stage {stage:2d}  {' '.join(names[:NAMES_MAX])}{more}")
    return text


def _named_apart(
    servers: Sequence[MeasuredServer], told: Sequence[ServerCapacity]
) -> list[MeasuredServer]:
    """Two ids that begin alike are written out."""
    names = [one.name for one in servers]
    return [
        one if names.count(one.name) == 1 else replace(one, name=str(PeerId(other.peer)))
        for one, other in zip(servers, told, strict=True)
    ]
