"""Simulated annealing of a pipelined plan: devices move between stages, and blocks do.

Every stage's rate and averaging time and every boundary's rate are kept; a move makes those anew
that it touches. A plan that cannot be, because a stage has no device or one that is too small
for it, costs a penalty, so that a way may lead through it.

Shapes:  stage (s), boundary (b), device (n), block (k).
"""

from typing import NamedTuple

import numpy as np

from p2pswarm.kernels.jit import compiled
from p2pswarm.plan.annealing import RandomState, below, share
from p2pswarm.plan.network import Floats, Ints

PENALTY_S = 1e7  # of a stage without a device, and of each device that is too small for its stage
RATE_LEAST = 1e-12
FADE_EVERY = 1024  # moves, so that costs are compared that count means alike
BORDER, ONE, OTHER, A, B = range(5)  # what was changed: a border by ONE, or devices; two stages
MOVE_DEVICE, SWAP_DEVICES = 0.45, 0.9  # shares of the moves; the rest move a border


class Needs(NamedTuple):
    """What devices have, and what a step asks of them, as arrays and numbers."""

    flops_n: Floats
    memory_n: Floats
    access_n: Floats
    links_nn: Floats
    latency_nn: Floats
    flops_k: Floats
    values_k: Floats
    averaging_bytes_k: Floats
    numbers: Floats
    """Microbatches, bytes over a boundary, microbatches a codec can do in a second, state bytes a
    value, working bytes, whether averaging overlaps, values at both ends that one stage of both has
    once."""


class Draft(NamedTuple):
    """A plan that moves change in place. Stage -1 is a device that is not used."""

    stage_n: Ints
    borders_s: Ints
    """The first block of each stage, and the number of blocks."""


class Parts(NamedTuple):
    """What a plan's parts cost."""

    stages_sx: Floats
    """Of each stage: rate; mean service time; averaging, s; devices that are too small."""
    boundaries_bx: Floats
    """Of each boundary: rate; mean time of a hop there and back, s."""


@compiled
def parts_of(needs: Needs, draft: Draft) -> Parts:
    """Return what all parts cost."""
    stages = len(draft.borders_s) - 1
    parts = Parts(np.zeros((stages, 4)), np.zeros((max(stages - 1, 0), 2)))
    for stage in range(stages):
        _stage(needs, draft, parts, stage)
    for boundary in range(stages - 1):
        _boundary(needs, draft, parts, boundary)
    return parts


@compiled
def device_rate(needs: Needs, draft: Draft, device: int, stage: int) -> float:
    """The microbatches a second that a device can do in a stage."""
    stages = len(draft.borders_s) - 1
    flops = needs.flops_k[draft.borders_s[stage] : draft.borders_s[stage + 1]].sum()
    rate = needs.flops_n[device] / flops
    sides = (1 if stage > 0 else 0) + (1 if stage < stages - 1 else 0)
    if sides > 0:
        nbytes = needs.numbers[1] * sides
        rate = min(rate, needs.access_n[device] / nbytes, needs.numbers[2] / sides)
    return float(rate)


@compiled
def _stage(needs: Needs, draft: Draft, parts: Parts, stage: int) -> None:
    first, after = draft.borders_s[stage], draft.borders_s[stage + 1]
    values = needs.values_k[first:after].sum()
    nbytes = needs.averaging_bytes_k[first:after].sum()
    if len(draft.borders_s) == 2:  # noqa: PLR2004  one stage has both ends
        nbytes *= 1.0 - needs.numbers[6] / values
        values -= needs.numbers[6]
    flops = needs.flops_k[first:after].sum()
    members = np.flatnonzero(draft.stage_n == stage)
    count = len(members)
    rates, service, average, small = 0.0, 0.0, 0.0, 0
    for one in members:
        rate = device_rate(needs, draft, int(one), stage)
        rates += rate
        service += rate * flops / needs.flops_n[one]
        if values * needs.numbers[3] + needs.numbers[4] > needs.memory_n[one]:
            small += 1
    if count > 1:
        slowest, latency = 0.0, 0.0
        for a in range(count):
            one = members[a]
            slowest = max(slowest, 2.0 * (count - 1) / count * nbytes / needs.access_n[one])
            for b in range(a):
                link = needs.links_nn[one, members[b]]
                slowest = max(slowest, 2.0 / count * nbytes / link)
                latency = max(latency, needs.latency_nn[one, members[b]])
        average = slowest + 2.0 * latency
    parts.stages_sx[stage, 0] = rates
    parts.stages_sx[stage, 1] = service / max(rates, RATE_LEAST)
    parts.stages_sx[stage, 2] = average
    parts.stages_sx[stage, 3] = small if count > 0 else 1


@compiled
def _boundary(needs: Needs, draft: Draft, parts: Parts, boundary: int) -> None:
    """The rate of a boundary is a cut: whatever is sent leaves a device and comes to another."""
    befores = np.flatnonzero(draft.stage_n == boundary)
    afters = np.flatnonzero(draft.stage_n == boundary + 1)
    nbytes = needs.numbers[1]
    into = np.zeros(len(afters))
    leaving, hops = 0.0, 0.0
    for one in befores:
        out = 0.0
        for k in range(len(afters)):
            link = needs.links_nn[one, afters[k]] / nbytes
            out += link
            into[k] += link
            hops += 2.0 * (1.0 / link + needs.latency_nn[one, afters[k]])
        leaving += min(out, device_rate(needs, draft, int(one), boundary))
    coming = 0.0
    for k in range(len(afters)):
        coming += min(into[k], device_rate(needs, draft, int(afters[k]), boundary + 1))
    parts.boundaries_bx[boundary, 0] = min(leaving, coming)
    parts.boundaries_bx[boundary, 1] = hops / max(len(befores) * len(afters), 1)


@compiled
def step_s(needs: Needs, parts: Parts, means: float) -> float:
    """The seconds of a step, and a share `means` of the means beside what is slowest."""
    stages_sx, boundaries_bx = parts.stages_sx, parts.boundaries_bx
    slowest, total, fill, average, averages, small = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for stage in range(len(stages_sx)):
        each = 1.0 / max(stages_sx[stage, 0], RATE_LEAST)
        slowest, total = max(slowest, each), total + each
        fill += stages_sx[stage, 1]
        average, averages = max(average, stages_sx[stage, 2]), averages + stages_sx[stage, 2]
        small += stages_sx[stage, 3]
    for boundary in range(len(boundaries_bx)):
        each = 1.0 / max(boundaries_bx[boundary, 0], RATE_LEAST)
        slowest, total = max(slowest, each), total + each
        fill += boundaries_bx[boundary, 1]
    each = slowest + means * total / (len(stages_sx) + len(boundaries_bx))
    work = fill + (needs.numbers[0] - 1.0) * min(each, PENALTY_S)
    average += means * averages / len(stages_sx)
    step = max(work, average) if needs.numbers[5] > 0 else work + average
    return float(step + PENALTY_S * small)


@compiled
def anneal_pipelined(
    needs: Needs, draft: Draft, best: Draft, heats: Floats, moves: int, luck: RandomState
) -> float:
    """Anneal `draft`; `best` becomes the best on the way. Returns the seconds of its step.

    `heats`: hottest and coldest, as shares of the step's time, and how much means count at first.
    """
    parts, kept = parts_of(needs, draft), parts_of(needs, draft)
    spot = np.zeros(5, np.int64)
    means = heats[2]
    cost = step_s(needs, parts, means)
    least = step_s(needs, parts, 0.0)
    _take(draft, best)
    heat = heats[0]
    factor = (heats[1] / heats[0]) ** (1.0 / moves)
    for move in range(moves):
        heat *= factor
        if move % FADE_EVERY == 0:
            means = heats[2] * (1.0 - move / moves)
            cost = step_s(needs, parts, means)
        if not _change(draft, spot, luck):
            continue
        _again(needs, draft, parts, spot[A], spot[B])
        now = step_s(needs, parts, means)
        if now <= cost or share(luck) < np.exp((cost - now) / (heat * cost)):
            cost = now
            _keep(parts, kept, spot[A], spot[B])
            true = step_s(needs, parts, 0.0)
            if true < least:
                least = true
                _take(draft, best)
        else:
            _keep(kept, parts, spot[A], spot[B])
            _undo(draft, spot)
    return float(least)


@compiled
def _change(draft: Draft, spot: Ints, luck: RandomState) -> bool:
    """Move a device, swap two, or move a border; `spot` says what; False if nothing changed."""
    stages, devices = len(draft.borders_s) - 1, len(draft.stage_n)
    kind = share(luck)
    one, other = below(luck, devices), below(luck, devices)
    spot[BORDER], spot[ONE], spot[OTHER] = 0, one, other
    if kind > SWAP_DEVICES and stages > 1:
        border = 1 + below(luck, stages - 1)
        step = 2 * below(luck, 2) - 1
        moved = draft.borders_s[border] + step
        if not draft.borders_s[border - 1] < moved < draft.borders_s[border + 1]:
            return False
        draft.borders_s[border] = moved
        spot[BORDER], spot[ONE], spot[A], spot[B] = border, step, border - 1, border
        return True
    spot[A], spot[B] = draft.stage_n[one], draft.stage_n[other]
    if kind < MOVE_DEVICE:
        spot[OTHER], spot[B] = one, below(luck, stages + 1) - 1
    draft.stage_n[spot[OTHER]] = spot[A]
    draft.stage_n[one] = spot[B]
    return bool(spot[A] != spot[B])


@compiled
def _undo(draft: Draft, spot: Ints) -> None:
    if spot[BORDER] > 0:
        draft.borders_s[spot[BORDER]] -= spot[ONE]
        return
    draft.stage_n[spot[OTHER]] = spot[B]
    draft.stage_n[spot[ONE]] = spot[A]


@compiled
def _take(draft: Draft, into: Draft) -> None:
    into.stage_n[:] = draft.stage_n
    into.borders_s[:] = draft.borders_s


@compiled
def _again(needs: Needs, draft: Draft, parts: Parts, a: int, b: int) -> None:
    """Make the parts anew that two stages belong to."""
    stages = len(draft.borders_s) - 1
    for stage in (a, b):
        if stage >= 0:
            _stage(needs, draft, parts, stage)
    for boundary in range(stages - 1):
        if boundary in (a, b) or boundary + 1 in (a, b):
            _boundary(needs, draft, parts, boundary)


@compiled
def _keep(parts: Parts, kept: Parts, a: int, b: int) -> None:
    """Copy the parts that two stages belong to."""
    for stage in (a, b):
        if stage >= 0:
            kept.stages_sx[stage] = parts.stages_sx[stage]
    for boundary in range(len(parts.boundaries_bx)):
        if boundary in (a, b) or boundary + 1 in (a, b):
            kept.boundaries_bx[boundary] = parts.boundaries_bx[boundary]
