"""`p2pswarm simulate`: reads what is to be played, plays it, and tells what came of it.

A day has millions of microbatches, which would take hours to play. So one may stand for several of
the run's: it computes, and weighs, as much as they do together. A step has at least as many of them
as keep all machines busy, so it may stand for several, too. What a step loses when a machine dies
is then larger than in the run, and the share that is told is a bit too low. Such a day is pressed
(`sim/day.py`), which makes it harder, too.
"""

import contextlib
import functools
import json
import logging
import math
import statistics
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from typing import Any

import matplotlib as mpl

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target, write_answer, write_target
from p2pswarm.commands.arguments import say
from p2pswarm.commands.picture import FAINT, picture, picture_format
from p2pswarm.commands.plan.devices import load_of, read_devices
from p2pswarm.models.blocks import block_costs, stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.run_match import check_records
from p2pswarm.plan.codec_costs import CODECS
from p2pswarm.plan.device_file import DeviceFile, PlanOptions, SiteDevices, region_network
from p2pswarm.plan.fleet import BYTES_PER_GBIT, WorkLoad
from p2pswarm.plan.network import RegionNetwork, shipped_network
from p2pswarm.settings.config import RANDOM, BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.parser import load
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.day import DayConfig, SimDay
from p2pswarm.sim.day_record import DayRecord
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.loop import run as in_virtual_time
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.traces import HOUR_S, Trace, shortage, stays, trace_of
from p2pswarm.tensors.flat_layout import FlatLayout

TERA = 1e12
FLOPS_A_COST = 2  # a multiplication and an addition
DEVICES_MAX = 1_000  # a day of more would take hours
BUSY_MICROBATCHES = 4  # of a step, for each machine: fewer would leave machines idle
SMALL = ModelConfig(d_model=128, layers=2, heads=2, sequence_length=256)
"""Model in memory in place of the run's: as little as is not sent within a message."""
STEP_MAX_S = 600.0  # a longer step would lose more with each machine, and hardly ever end
PRESSED_MAX = 4.0  # a server is taken for dead after 4 s, so after 16 s of a day that is pressed so
PIECES = 96  # of the day, in the picture and in the JSON
HOME_BYTES_PER_S = 25e6  # a good link of a home, where no network is named
DONE, BEST, LOST = "#1f5f99", "#c9a227", "#c0392b"
STAGE_COLOURS = "viridis"
STAGES_NAMED = 8  # more names would hide the curves


@dataclass(frozen=True, slots=True)
class PlannedDay:
    """A day that is ready to be played, and how coarse it is."""

    day: DayConfig
    bundled: int
    """Number of the run's microbatches that one stands for."""
    steps: float
    """Number of the run's steps that one stands for."""


def main(asked: Namespace) -> int:
    """Play, print, write, draw."""
    for path in (asked.json, asked.plot):
        if path is not None:
            check_target(path)
    if asked.plot is not None:
        picture_format(asked.plot)
    planned = planned_day(asked)
    for line in about(planned):
        say(line)
    begun_s = time.process_time()
    with _without_warnings():
        record: DayRecord = in_virtual_time(SimDay(planned.day).play(), asked.seed)
    took_s = time.process_time() - begun_s
    for line in outcome(record, planned, took_s):
        say(line)
    if asked.json is not None:
        text = json.dumps(as_json(record, planned, asked, took_s), indent=1) + "\n"
        say(f"figures: {write_answer(asked.json, text)}")
    if asked.plot is not None:
        title = f"{asked.trace or 'no trace'}, {len(planned.day.fleet)} machines at most"
        pieces, kind = series(record, planned), picture_format(asked.plot)
        draw = functools.partial(draw_day, record, pieces, title)
        written = write_target(asked.plot, lambda path: draw(path, kind), replace=True)
        say(f"picture: {written}")
    return 0


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """While this block lasts: each machine that is taken would be one."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def planned_day(asked: Namespace) -> PlannedDay:
    """Return what is to be played; Unusable for what cannot be."""
    settings = load(asked.config, asked.changes)
    given = read_devices(asked.devices)
    listed = [entry for entry in given.device for _ in range(entry.count)]
    run, checkpoint, count = resolved(settings.run), settings.checkpoint, len(listed)
    _check_count(asked.devices, count, run.stages)
    check_records(run)  # as a trainer does: servers without room would be declined for ever
    network = _network(replace(given, network=asked.network or given.network), asked.devices)
    everybody = Trace(((0.0, count),), asked.hours * HOUR_S, 0.0)
    trace = trace_of(asked.trace) if asked.trace else everybody
    there = tuple(stays(trace, count, asked.hours, Random(f"stays {asked.seed}")))
    blocks = [stage_blocks(run, stage) for stage in range(run.stages)]
    layouts = [layout_of(run, each) for each in blocks]
    work = load_of(run, PlanOptions())
    held = [work.held_bytes_per_value * work.values_k[each].sum() for each in blocks]
    least = held if run.has_base else [layout.state_bytes for layout in layouts]
    _check_memory(listed, min(least), asked.devices)
    fleet = tuple(
        SimDevice(
            speed=device.tflops,
            drift=device.drift,
            place=network.index(device.region) if network is not None else None,
        )
        for device in listed
    )
    day = DayConfig(
        run=run,
        fleet=fleet,
        stays=there,
        seconds=asked.hours * HOUR_S,
        cost=_cost(run, work, blocks, layouts),
        world=WorldConfig(network=network)
        if network is not None
        else WorldConfig(bandwidth_bytes_per_s=HOME_BYTES_PER_S),
        trainer_place=network.index(given.trainer_region or listed[0].region)
        if network is not None
        else None,
        notice_s=trace.notice_s,
        noticed=asked.noticed,
        checkpoint_steps=checkpoint.every_steps if checkpoint.target else None,
        seed=asked.seed,
    )
    return _coarse(day, asked.detail)


def _coarse(day: DayConfig, detail: int) -> PlannedDay:
    """The same day in at most about `detail` microbatches, in tensors that are small in memory."""
    run = day.run
    possible = min(_possible(day), _carried(day))
    busy = min(run.batch.microbatches, BUSY_MICROBATCHES * len(day.fleet))
    most = int(possible / day.seconds * STEP_MAX_S / busy)
    bundled = max(1, min(most, math.ceil(possible / detail)))
    microbatches = max(busy, math.ceil(run.batch.microbatches / bundled))
    steps = microbatches * bundled / run.batch.microbatches
    true_bytes = run.batch.rows * run.model.sequence_length * run.model.crossing_width
    small_bytes = SMALL.sequence_length * SMALL.d_model
    scale = bundled * true_bytes / small_bytes
    every = day.checkpoint_steps
    played = replace(
        day,
        run=replace(
            run,
            adapter=None,  # what is frozen is in the cost
            frozen=(),
            base="full",
            start=RANDOM,
            model=replace(SMALL, layers=max(SMALL.layers, run.stages), dtype=run.model.dtype),
            batch=BatchConfig(microbatches=microbatches, rows=1, evaluate_every=0),
        ),
        cost=Cost(
            forward_s=bundled * day.cost.forward_s,
            state_bytes=math.ceil(day.cost.state_bytes / scale),
            gradient_bytes=math.ceil(day.cost.gradient_bytes / scale),
            shares=day.cost.shares,
            backward_share=day.cost.backward_share,
        ),
        world=replace(day.world, bulk_scale=scale),
        pressed=min(PRESSED_MAX, bundled),
        checkpoint_steps=max(1, round(every / steps)) if every is not None else None,
    )
    return PlannedDay(played, bundled, steps)


def _possible(day: DayConfig) -> float:
    """The microbatches of the run that the day has time for at best."""
    moments = sorted(
        {0.0, day.seconds}
        | {stay.begin_s for stay in day.stays}
        | {stay.end_s for stay in day.stays if stay.end_s < day.seconds}
    )
    total = 0.0
    for begin_s, end_s in pairwise(moments):
        there = [s.machine for s in day.stays if s.begin_s <= begin_s < s.end_s]
        total += day.optimum(there) * (end_s - begin_s)
    if not total:
        raise Unusable("there are never as many machines as stages: list more, or cut the run less")
    return total


def _carried(day: DayConfig) -> float:
    """The microbatches of the run that the links between two stages have time for, about.

    They are rounded as in the first step. Links count as their median. Between two regions each
    pair of machines has a rate for itself.
    """
    run, count = day.run, max(1, len(day.fleet) // day.run.stages)
    if run.stages == 1:
        return math.inf
    ways = run.codecs.activation, run.codecs.gradient
    values = run.batch.rows * run.model.sequence_length * run.model.crossing_width
    known = {codec.name: codec.bytes_per_value for codec in CODECS}
    size_bytes = values * sum(known.get(name, known["raw"]) for name in ways)
    rate_bytes_per_s = day.world.bandwidth_bytes_per_s * count
    if (network := day.world.network) is not None:
        places = [machine.place for machine in day.fleet if isinstance(machine.place, int)]
        rates = [network.gbps[one][other] for one, other in permutations(places, 2)]
        rate_bytes_per_s = statistics.median(rates) * BYTES_PER_GBIT * count**2
    return rate_bytes_per_s / size_bytes * day.seconds


def about(planned: PlannedDay) -> list[str]:
    """Return what is going to be played."""
    day = planned.day
    hours = day.seconds / HOUR_S
    size = f"{len(day.fleet)} machines at most, {day.run.stages} stages"
    lines = [f"{size}, {hours:g} hours, seed {day.seed}"]
    if planned.bundled > 1:
        lines.append(
            f"a simulated microbatch stands for {planned.bundled} of the run's, and a step for "
            f"{planned.steps:.1f}; the day is pressed {day.pressed:g} times (--detail)"
        )
    if short := shortage(day.stays, day.run.stages, day.seconds):
        lines.append(
            f"nothing can train for {short.seconds / 60:.0f} min, the first time after "
            f"{short.first_s / 60:.0f} min: the trace leaves fewer machines than stages; "
            "list more of them, or cut the run into fewer stages"
        )
    return lines


def outcome(record: DayRecord, planned: PlannedDay, took_s: float) -> list[str]:
    """Return what came of it, for people."""
    hours = record.ended_s / HOUR_S
    rate = planned.bundled * record.done(0.0, record.ended_s) / record.ended_s
    best = planned.bundled * record.possible(0.0, record.ended_s) / record.ended_s
    first = record.share(0.0, min(hours, 1.0) * HOUR_S)
    last = record.share(max(0.0, hours - 1.0) * HOUR_S, record.ended_s)
    share, hourly = record.share(), f"first hour {first:.3f}, last {last:.3f}"
    machines = f"{record.machines_mean:.1f} machines on average; {record.taken} were taken"
    speed = f"{rate:.3g} of {best:.3g} microbatches/s"
    lines = [
        f"{machines}, {record.told} of them were told before",
        f"{share:.3f} of what they could do at best: {speed}; {hourly}",
        f"{len(record.steps)} steps; the longest time without one {record.longest_stall_s:.0f} s",
    ]
    every = planned.day.checkpoint_steps
    if record.runs_lost_s and every is None:
        lost_h = record.runs_lost_s[0] / HOUR_S
        lines.append(
            f"after {lost_h:.1f} hours nobody had the weights of a stage: the run would wait for "
            'ever; set checkpoint.target and run.on_stage_lost = "rewind"'
        )
    elif record.runs_lost_s:
        lines.append(
            f"{len(record.runs_lost_s)} times nobody had the weights of a stage: "
            f"{planned.bundled * record.done_again} microbatches were done again from checkpoints"
        )
    lines.append(f"simulated in {took_s:.0f} s of processor")
    return lines


def as_json(
    record: DayRecord, planned: PlannedDay, asked: Namespace, took_s: float
) -> dict[str, Any]:
    """Return what came of it, for scripts."""
    per_s, end_s = planned.bundled, record.ended_s
    return {
        "trace": asked.trace,
        "hours": end_s / HOUR_S,
        "seed": asked.seed,
        "machines": len(planned.day.fleet),
        "machines_mean": round(record.machines_mean, 3),
        "taken": record.taken,
        "told": record.told,
        "share_of_optimum": round(record.share(), 4),
        "share_first_hour": round(record.share(0.0, min(end_s, HOUR_S)), 4),
        "share_last_hour": round(record.share(max(0.0, end_s - HOUR_S), end_s), 4),
        "microbatches_per_s": per_s * record.done(0.0, end_s) / end_s,
        "optimum_per_s": per_s * record.possible(0.0, end_s) / end_s,
        "bundled": planned.bundled,
        "pressed": planned.day.pressed,
        "steps": len(record.steps),
        "longest_stall_s": round(record.longest_stall_s, 1),
        "weights_lost": len(record.runs_lost_s),
        "done_again": per_s * record.done_again,
        "waste": dict(record.waste),
        "series": series(record, planned),
        "members": [[round(one.at_s / HOUR_S, 4), list(one.members)] for one in record.steps],
        "processor_s": round(took_s, 1),
    }


def series(record: DayRecord, planned: PlannedDay) -> list[tuple[float, float, float]]:
    """Hours, the run's microbatches a second, and how many there could have been."""
    found = record.series(planned.day.seconds / PIECES)
    return [(hour, done * planned.bundled, best * planned.bundled) for hour, done, best in found]


def draw_day(
    record: DayRecord,
    series: Sequence[tuple[float, float, float]],
    title: str,
    place: Path,
    kind: str,
) -> None:
    """Write the picture into the file `place`; `series`: hours, microbatches/s, the optimum."""
    with picture(place, kind) as figure:
        rates, members = figure.subplots(2, 1, sharex=True, height_ratios=[2.0, 1.0])
        hours = [hour for hour, _, _ in series]
        rates.step(hours, [best for _, _, best in series], color=BEST, label="at best")
        rates.step(hours, [done for _, done, _ in series], color=DONE, label="done")
        rates.set_ylim(bottom=0.0)
        rates.set_ylabel("microbatches/s")
        rates.legend(frameon=False, loc="lower left")
        rates.set_title(f"{title}: {record.share():.3f} of the optimum", loc="left", fontsize=11)
        at_h = [step.at_s / HOUR_S for step in record.steps]
        colours = mpl.colormaps[STAGE_COLOURS]
        for stage in range(record.stages):
            members.step(
                at_h,
                [step.members[stage] for step in record.steps],
                color=colours(stage / max(1, record.stages - 1)),
                linewidth=1,
                where="post",
                label=f"stage {stage}",
            )
        members.set_ylim(bottom=0.0)
        members.set_ylabel("members")
        members.set_xlabel("hours")
        if record.stages <= STAGES_NAMED:
            members.legend(frameon=False, ncols=record.stages, loc="lower left", fontsize=8)
        for axes in (rates, members):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(color=FAINT)
            for lost_s in record.runs_lost_s:
                axes.axvline(lost_s / HOUR_S, color=LOST, linewidth=1, linestyle=(0, (4, 3)))


def _check_count(path: Path, count: int, stages: int) -> None:
    if count > DEVICES_MAX:
        raise Unusable(f"{path} lists {count} machines: simulate {DEVICES_MAX} of them at most")
    if count < stages:
        raise Unusable(
            f"{path} lists {count} machines, and the run has {stages} stages: "
            "list more, or set run.stages"
        )


def _network(given: DeviceFile, path: Path) -> RegionNetwork | None:
    """The network of the regions, those with links of the user's own too; None without regions."""
    placed = [bool(device.region) for device in given.device]
    if not any(placed):
        return None
    if not given.network and not given.link:
        raise Unusable(f'{path} names regions: say of which network, network = "aws"')
    if not all(placed):
        raise Unusable(f"{path}: device {placed.index(False) + 1} names no region")
    return region_network(given) if given.link else shipped_network(given.network)


def _cost(
    run: RunConfig, work: WorkLoad, blocks: Sequence[range], layouts: Sequence[FlatLayout]
) -> Cost:
    """Return what a stage of the run costs, and how the stages differ.

    The plan's work of a step is of three parts, one of them a forward's.
    """
    block_cost = block_costs(run.model)
    costs = [sum(block_cost[number] for number in each) for each in blocks]
    mean_cost, tokens = statistics.fmean(costs), run.batch.rows * run.model.sequence_length
    forward_flops = FLOPS_A_COST * sum(block_cost) * tokens
    return Cost(
        forward_s=FLOPS_A_COST * mean_cost * tokens / TERA,
        state_bytes=round(statistics.fmean(layout.state_bytes for layout in layouts)),
        gradient_bytes=round(float(work.averaging_bytes_k.sum()) / len(blocks)),
        backward_share=float(work.flops_k.sum()) / forward_flops - 1,
        shares=tuple(cost / mean_cost for cost in costs),
    )


def _check_memory(listed: list[SiteDevices], least_bytes: float, path: Path) -> None:
    for number, device in enumerate(listed, 1):
        if device.memory_gib * 2**30 < least_bytes:
            raise Unusable(
                f"{path}: machine {number} has {device.memory_gib:g} GiB, and the smallest stage "
                f"needs {least_bytes / 2**30:.1f}: cut the run into more stages"
            )
