"""`p2pswarm plan devices.toml`: a file of devices, the search of a plan, and its picture."""

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target, write_answer, write_target, write_text
from p2pswarm.commands.arguments import say, toml
from p2pswarm.commands.picture import picture
from p2pswarm.models.adapters.lora_modules import is_of_adapter
from p2pswarm.models.base_weights.base_layout import base_tensors, size_of
from p2pswarm.models.blocks import averagings_of, block_costs, cut_into, make_blocks
from p2pswarm.models.model_source import resolved
from p2pswarm.models.weight_tying import tied_in
from p2pswarm.plan.codec_costs import codec_of
from p2pswarm.plan.device_file import DeviceFile, PlanOptions, fleet_of
from p2pswarm.plan.fleet import DeviceFleet, WorkLoad
from p2pswarm.plan.network import Floats
from p2pswarm.plan.pipeline_annealing import Draft, device_rate
from p2pswarm.plan.pipeline_cost import PlannedEdge, connections_of, edges_of, needs_of
from p2pswarm.plan.pipeline_search import (
    PipelinedPlan,
    PlanEffort,
    loads_of,
    one_more,
    search_pipelined,
)
from p2pswarm.run.schedule import delay_cost
from p2pswarm.settings.config import HF, POWERSGD, RunConfig
from p2pswarm.settings.parser import from_values, read_table
from p2pswarm.tensors.flat_layout import ITEM_BYTES, averaged_values

PACE = "#c0392b"
KINDS = ("#1f5f99", "#4c8c4a", "#d08c2f", "#7b5ea7", "#9db8d2", "#a3623a", "#5a9e9a", "#888888")
HEIGHT_INCHES = 4.2
FLOPS_PER_MULTIPLICATION = 6  # a multiplication and an addition; a backward is two forwards
ONE_MORE_SHARE = 0.15  # of the time, for what another device would bring
STAGES_MAX = 256
OF_A_NODE = {"role", "train", "serve", "checkpoint", "bootstrap"}
"""What a file of devices has not, and a settings file has."""
DELAY_GAIN_LEAST = 0.05  # of the speed: less is not worth the loss
EDGES_TOLD = 6  # links with several connections, in the lines for people; --json has all


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """A plan, and what it is of."""

    asked: RunConfig
    """The run as its user has it."""
    fleet: DeviceFleet
    load: WorkLoad
    plan: PipelinedPlan
    gains: list[tuple[str, float]]
    """A kind of device, and the step's time with one more."""

    @property
    def connections(self) -> list[int]:
        """Number of connections of each device."""
        return connections_of(self.fleet, self.load, self.plan.cost)

    @property
    def speed(self) -> float:
        """Tokens a second, with filling, draining and averaging."""
        return self.asked.step_tokens / self.plan.seconds

    def tokens_per_s(self, pace_s: float) -> float:
        """The tokens of microbatches that follow one another at a pace."""
        return self.asked.tokens_per_microbatch / pace_s

    @property
    def price_per_hour(self) -> float | None:
        """What the devices cost that the plan uses; None if no price is known."""
        prices = self.fleet.prices_n
        used = [device for stage in self.plan.stages for device in stage]
        return sum(prices[device] for device in used) if prices else None

    @property
    def edges(self) -> list[PlannedEdge]:
        """The links that it uses."""
        return edges_of(self.fleet, self.load, self.plan.cost)

    @property
    def run(self) -> RunConfig:
        """The run as the plan has it."""
        cut = tuple(after - first for first, after in pairwise(self.plan.borders))
        least = min(len(devices) for devices in self.plan.stages)
        found = cut_into(self.asked, len(cut), cut)
        codecs = found.codecs
        if codecs.choice == "fixed":  # else the coordinator chooses, and begins with bf16
            up, down = self.plan.codec.ways
            codecs = dataclasses.replace(codecs, activation=up, gradient=down)
        return dataclasses.replace(
            found,
            codecs=codecs,
            min_replicas=min(self.asked.min_replicas, least),  # more would never come
        )


def read_devices(path: Path) -> DeviceFile:
    """The file; Unusable says in one line what is wrong with it."""
    table = read_table(path)
    if "device" not in table and not table.keys().isdisjoint(OF_A_NODE):
        raise Unusable(
            f"{path}: the settings of a node, and no devices: p2pswarm plan --example prints a "
            "file of devices"
        )
    try:
        return from_values(DeviceFile, table)
    except ValueError as error:
        raise Unusable(f"{path}: {error}") from error


def main(path: Path, seconds: float, seed: int, json_out: Path | None, folder: Path | None) -> int:
    """Search, and print what was found; returns the exit code."""
    given = read_devices(path)
    given = dataclasses.replace(given, run=resolved(given.run))
    fleet = fleet_of(given)
    for target in targets(fleet.names, folder) if folder else []:
        check_target(target)
    if json_out is not None:
        check_target(json_out)
    found = plan_of(given.run, given.plan, fleet, seconds, seed)
    say("\n".join(lines(found)))
    write_plan(found, json_out, folder, {})
    return 0


def write_plan(
    found: PlanAnswer,
    json_out: Path | None,
    folder: Path | None,
    more: dict[str, float],
) -> None:
    """Write what scripts read, with `more` fields, and what nodes do; and say so."""
    if json_out is not None:
        text = json.dumps(as_json(found) | more) + "\n"
        say(f"plan: {write_answer(json_out, text)}")
    if folder is not None:
        _write_settings(found, folder)


def plan_of(
    run: RunConfig,
    options: PlanOptions,
    fleet: DeviceFleet,
    seconds: float,
    seed: int,
    known: Draft | None = None,
) -> PlanAnswer:
    """The best plan that is found in the time, no worse than the one that is `known`."""
    loads = loads_of(load_of(run, options), [codec_of(name) for name in options.codecs])
    blocks = len(loads[0].flops_k)
    stages = options.stages or range(1, min(blocks, len(fleet.names), STAGES_MAX) + 1)
    share = 1 - ONE_MORE_SHARE
    effort = PlanEffort(share * seconds, seed, time.monotonic)
    tried = [*stages] if known is None else [known, *stages]
    plan = search_pipelined(fleet, loads, tried, effort)
    load = next(each for each in loads if each.codec == plan.codec)
    more = dataclasses.replace(effort, seconds=ONE_MORE_SHARE * seconds)
    gains = one_more(fleet, plan, load, more)
    return PlanAnswer(run, fleet, load, plan, gains)


def load_of(run: RunConfig, options: PlanOptions) -> WorkLoad:
    """Return what a step of the run asks of its devices."""
    costs = block_costs(run.model)
    with torch.device("meta"):
        bare = dataclasses.replace(run, model=dataclasses.replace(run.model, boundary="none"))
        blocks = make_blocks(bare, range(len(costs)))  # what modules add depends on the cut
    trained = [[each for each in b.parameters() if each.requires_grad] for b in blocks]
    values = [sum(each.numel() for each in part) for part in trained]
    once = sum({id(each): each.numel() for part in trained for each in part}.values())
    tokens = run.batch.rows * run.model.sequence_length
    held = held_bytes_per_value(run)
    # a frozen weight takes its bytes, as so much of a value that trains
    frozen = [size_of(base_tensors(run, block)) / held for block in blocks]
    averaged = averaging_bytes_per_value(run, blocks)
    whole = [one + other for one, other in zip(values, frozen, strict=True)]
    shares = [one / max(1.0, both) for one, both in zip(values, whole, strict=True)]
    return WorkLoad(
        microbatches=run.batch.microbatches,
        flops_k=np.array(costs) * float(FLOPS_PER_MULTIPLICATION * tokens) * _work(blocks),
        values_k=np.array(whole, dtype=np.float64),
        boundary_values=float(tokens * run.model.crossing_width),
        codec=codec_of(options.codecs[0]),
        averaging_bytes_per_value=averaged * np.array(shares),
        held_bytes_per_value=held,
        working_bytes=options.working_gib * 2.0**30,
        averaging_overlaps=options.averaging_overlaps or run.delay > 0,
        tied_values=float(sum(values) - once),
    )


def _work(blocks: Sequence[nn.Module]) -> Floats:
    """The share of a block's products that are made: a frozen weight has no gradient of its own,
    which is a third.
    """
    found = []
    for block in blocks:
        own = [each for name, each in block.named_parameters() if not is_of_adapter(name)]
        count = sum(each.numel() for each in own)
        frozen = sum(each.numel() for each in own if not each.requires_grad)
        found.append(1.0 - frozen / max(1, count) / 3.0)
    return np.array(found)


def averaging_bytes_per_value(run: RunConfig, blocks: Sequence[nn.Module]) -> Floats:
    """The bytes of a sum within a stage for each parameter, in the mean of each of all `blocks`."""
    means = []
    for name, block in zip(averagings_of(run, range(len(blocks))), blocks, strict=True):
        tied = block.get_parameter(ends[0]) if (ends := tied_in(block)) else None
        values, sent = 0, 0
        for parameter in block.parameters():
            if not parameter.requires_grad:
                continue
            count = parameter.numel()
            values += count
            if name == POWERSGD and parameter is not tied:
                count = averaged_values(tuple(parameter.shape), run.codecs.averaging_rank)
            sent += count
        means.append(sent * codec_of(name).bytes_per_value / max(1, values))
    return np.array(means, dtype=np.float64)


def held_bytes_per_value(run: RunConfig) -> float:
    """The memory that a server has for each parameter of its stage, graphs not counted.

    The state, the gradient's sum and its average; and a copy of the matrices in bfloat16, where
    blocks compute in it and the weights are kept otherwise. With a delay there are two sums and two
    copies.
    """
    state = sum(ITEM_BYTES[dtype] for dtype in run.state_dtypes)
    versions = 1 + run.delay
    copied = versions if run.precision == "bf16" and run.weight_storage != "bf16" else 0
    sums = (1 + versions) * ITEM_BYTES[run.model.dtype]
    return state + sums + copied * ITEM_BYTES["bfloat16"]


def delay_line(found: PlanAnswer) -> str | None:
    """What a delay of one step brings, if it is set, or would bring much."""
    cost, run = found.plan.cost, found.run
    apart_s = cost.fill_s + (found.load.microbatches - 1) * cost.pace_s + cost.averaging_s
    together_s = max(found.load.microbatches * cost.pace_s, cost.averaging_s)
    gain = apart_s / together_s - 1
    if not run.delay and (gain < DELAY_GAIN_LEAST or run.batch.microbatches == 1):
        return None
    what = "with run.delay = 1:" if run.delay else "run.delay = 1 would let steps overlap:"
    speed, cost_text = f"{100 * gain:+.0f} % speed", f"{delay_cost(run)} more loss at equal steps"
    return f"  {what} {together_s:.3f} s a step, {speed}, for {cost_text} (docs/delay.md)"


def speed_lines(found: PlanAnswer) -> list[str]:
    """Return what the plan trains in a second, what limits that, and what it costs."""
    cost, run = found.plan.cost, found.run
    pace, at_once = map(found.tokens_per_s, (cost.pace_s, cost.computing_pace_s))
    would = f"the computing would allow {at_once:,.0f}"
    if cost.carrying_pace_s:
        would += f", the links {found.tokens_per_s(cost.carrying_pace_s):,.0f}"
    text = [
        f"  speed: {found.speed:,.0f} tokens/s",
        f"  slowest: {cost.slowest}: {pace:,.0f} tokens/s; {would}",
    ]
    if (price := found.price_per_hour) is not None:
        millions = 3600 * found.speed / 1e6
        hours = run.steps * found.plan.seconds / 3600
        text.append(
            f"  price: {price:,.2f} an hour, {price / millions:,.2f} a million tokens, "
            f"{price * hours:,.2f} for {run.steps:,} steps in {hours:,.1f} h"
        )
    return text


def lines(found: PlanAnswer) -> list[str]:
    """Return what was found, for people."""
    plan, cost, fleet = found.plan, found.plan.cost, found.fleet
    above = plan.seconds / plan.lower_bound_s - 1
    work_s = (found.load.microbatches - 1) * cost.pace_s
    quality = f"at most {100 * above:.0f} % above the best: no plan takes under"
    text = [
        f"{plan.seconds:.3f} s a step, {quality} {plan.lower_bound_s:.3f} s"
        if not plan.proven
        else f"{plan.seconds:.3f} s a step, and no plan takes less",
        f"  {len(plan.stages)} stages; activations and gradients as {plan.codec.name}",
    ]
    if (averaging := found.run.codecs.averaging) != found.asked.codecs.averaging:
        text.append(
            f'  codecs.averaging = "{averaging}": its list was of {found.asked.stages} stages'
        )
    if found.run.codecs.choice == "measured":
        coarsest = "/".join(found.run.codecs.coarsest)
        text.append(f'  codecs.choice = "measured" begins with bf16, and goes as far as {coarsest}')
    for stage, devices in enumerate(plan.stages):
        first, after = plan.borders[stage], plan.borders[stage + 1]
        kinds = Counter(fleet.kinds[device] for device in devices)
        who = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        busy = 100 * cost.busy_s[stage]
        text.append(f"  stage {stage:2d}  blocks {first}-{after - 1}  {who}  busy {busy:.0f} %")
    if plan.unused:
        text.append("  not used: " + ", ".join(fleet.names[device] for device in plan.unused))
    text.append(
        f"  limit: {cost.limit}; microbatches {work_s:.2f} s, filling and draining "
        f"{cost.fill_s:.2f} s, averaging {cost.averaging_s:.2f} s"
    )
    text += speed_lines(found)
    if about_delay := delay_line(found):
        text.append(about_delay)
    if wide := [edge for edge in found.edges if edge.connections > 1]:
        links = ", ".join(f"{_link(fleet, edge)} {edge.connections}" for edge in wide[:EDGES_TOLD])
        more = f", and {len(wide) - EDGES_TOLD} more" if len(wide) > EDGES_TOLD else ""
        text.append(
            f"  connections of links that need several: {links}{more}; a device's settings have "
            "one number for all of its links, that of its widest"
        )
    for kind, seconds in found.gains:
        gain = 100 * (plan.seconds / seconds - 1)
        text.append(f"  one more {kind}: {seconds:.3f} s, {gain:+.1f} % speed at least")
    return text


def _link(fleet: DeviceFleet, edge: PlannedEdge) -> str:
    return f"{fleet.names[edge.one]} to {fleet.names[edge.other]}"


def as_json(found: PlanAnswer) -> dict[str, Any]:
    """The same for scripts."""
    plan, names = found.plan, found.fleet.names
    return {
        "seconds_per_step": plan.seconds,
        "lower_bound": plan.lower_bound_s,
        "proven": plan.proven,
        "stages": [[names[device] for device in devices] for devices in plan.stages],
        "objective": "pipelined",
        "evaluations": plan.evaluations,
        "unused": [names[device] for device in plan.unused],
        "cut": list(found.run.cut),
        "codec": plan.codec.name,
        "connections": dict(zip(names, found.connections, strict=True)),
        "edges": [
            {
                "from": names[edge.one],
                "to": names[edge.other],
                "microbatches_per_s": edge.rate_per_s,
                "connections": edge.connections,
            }
            for edge in found.edges
        ],
        "limit": plan.cost.limit,
        "slowest": plan.cost.slowest,
        "tokens_per_s": found.speed,
        "computing_tokens_per_s": found.tokens_per_s(plan.cost.computing_pace_s),
        "price_per_hour": found.price_per_hour,
        "pace_s": plan.cost.pace_s,
        "fill_s": plan.cost.fill_s,
        "averaging_s": plan.cost.averaging_s,
        "one_more": dict(found.gains),
    }


def targets(names: Sequence[str], folder: Path) -> list[Path]:
    """The files that are written; those of the devices are named after them."""
    return [folder / f"{name}" for name in ("run.toml", "plan.png", *map(_file_name, names))]


def trainer_toml(found: PlanAnswer) -> str:
    """The trainer's settings."""
    run = dataclasses.asdict(found.run)
    own = {name: value for name, value in run.items() if not isinstance(value, dict)}
    text = "# Made by p2pswarm plan: p2pswarm train run.toml --bootstrap HOST:PORT\n\n"
    text += 'role = "trainer"\n\n[train]\ndata = "text"  # your text, a file or a folder\n\n'
    text += "[run]\n" + toml(**own)
    for name, table in run.items():
        if isinstance(table, dict):
            text += f"\n[run.{name}]\n" + toml(**table)
    return text


def server_toml(found: PlanAnswer, device: int) -> str:
    """The settings of a device's server."""
    stage = next((stage for stage, group in enumerate(found.plan.stages) if device in group), None)
    text = "# Made by p2pswarm plan: p2pswarm node --config THIS --bootstrap HOST:PORT\n\n"
    hub = found.run.model.hub
    named = {"run": found.run.name} | ({"pretrained": f"{HF}{hub}"} if hub else {})
    text += 'role = "stage"\n\n[serve]\n' + toml(**named)
    if stage is None:
        text += "# The plan has no use for it: it would serve wherever it helps most.\n"
    else:
        text += (
            f"planned_stage = {stage}  # where it begins; the run moves it if it measures better\n"
        )
    return text + "\n[network]\n" + toml(bulk_connections=found.connections[device])


def draw_plan(found: PlanAnswer, place: Path) -> None:
    """Write a PNG into `place`: what a stage's devices can do, and what the plan asks of them."""
    plan, fleet = found.plan, found.fleet
    needs = needs_of(fleet, found.load)
    stage_n = np.full(len(fleet.names), -1, dtype=np.int64)
    for stage, devices in enumerate(plan.stages):
        stage_n[list(devices)] = stage
    draft = Draft(stage_n, np.array(plan.borders, dtype=np.int64))
    kinds = sorted(set(fleet.kinds))
    with picture(place, "png", HEIGHT_INCHES) as figure:
        axes = figure.subplots()
        named = set[str]()
        for stage, devices in enumerate(plan.stages):
            bottom = 0.0
            for device in sorted(devices, key=lambda each: kinds.index(fleet.kinds[each])):
                kind = fleet.kinds[device]
                height = device_rate(needs, draft, device, stage)
                color = KINDS[kinds.index(kind) % len(KINDS)]
                label = None if kind in named else kind
                axes.bar(stage, height, 0.7, bottom, color=color, edgecolor="white", label=label)
                named.add(kind)
                bottom += height
        axes.axhline(1 / plan.cost.pace_s, color=PACE, linewidth=1.2, linestyle=(0, (4, 3)))
        blocks = [
            f"{stage}\nblocks {plan.borders[stage]}-{plan.borders[stage + 1] - 1}"
            for stage in range(len(plan.stages))
        ]
        axes.set_xticks(range(len(blocks)), blocks, fontsize=8)
        axes.set_xlabel("stage")
        axes.set_ylabel("microbatches a second")
        axes.set_title(
            f"{plan.seconds:.2f} s a step, at least {plan.lower_bound_s:.2f}; limit: "
            f"{plan.cost.limit}",
            loc="left",
            fontsize=10,
        )
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.spines[["top", "right"]].set_visible(False)


def _write_settings(found: PlanAnswer, folder: Path) -> None:
    names = targets(found.fleet.names, folder)
    say(f"plan: {write_text(names[0], trainer_toml(found))}")
    picture_file = write_target(names[1], lambda place: draw_plan(found, place), replace=True)
    say(f"plan: {picture_file}")
    for device, path in enumerate(names[2:]):
        write_text(path, server_toml(found, device))
    say(f"plan: {len(names) - 2} files for the devices in {folder}")


def _file_name(name: str) -> str:
    plain = "".join(each if each.isalnum() or each in "-_" else "-" for each in name)
    return f"{plain}.toml"
