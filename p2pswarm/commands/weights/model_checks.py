"""`p2pswarm check-model`: whether a run's model computes in stages what it computes as a whole."""

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from p2pswarm.base.errors import RunEnded
from p2pswarm.commands.arguments import write
from p2pswarm.models.blocks import block_count, cheapest_cut, stage_blocks
from p2pswarm.models.boundary_block import has_modules
from p2pswarm.models.check.block_times import block_times_s
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.compute.bundle_spec import block_above, check_model
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.config import RunConfig

WORTH = 1.05  # a cut that makes the slowest stage faster by less is not worth to be said


def main(source: Path, settings: RunConfig, begun_s: float, *, times: bool = False) -> int:
    """Check the model of a settings file, and say what was found; `settings`: its run.

    `times`: measure each block, too, and say which cut makes the stages alike.
    """
    torch.set_num_threads(1)  # it is small: threads would only wait for each other
    run = resolved(settings)
    check_model(run)
    found = check_stages(run)
    if found.problem:
        raise RunEnded(f"{source}: the model computes wrong in stages: {found.problem}")
    apart = "identical" if found.apart == 0 else f"equal but for {found.apart:.0e}"
    write(
        f"{source}: {run.model.family}, {block_count(run.model)} blocks in {run.stages} stages: "
        f"good\na small copy in {found.stages} stages and as a whole, forward, backward, computed "
        f"again, twice: the loss and the gradients of {found.parameters} parameters are {apart} "
        f"({time.monotonic() - begun_s:.1f} s)\n"
    )
    if has_modules(run):
        write(f"{cut_text(run)}\n")
    if times:
        measured_s = block_times_s(run, torch.device("cpu"), time.perf_counter)
        write("".join(f"{line}\n" for line in told_times(run, measured_s)))
    return 0


def cut_text(run: RunConfig) -> str:
    """The modules at cuts, and what they hold."""
    numbers = ", ".join(str(block_above(run, stage)) for stage in range(run.stages - 1))
    blocks = f"block {numbers}" if run.stages == 2 else f"blocks {numbers}"  # noqa: PLR2004
    return (
        f"{run.model.boundary} modules below {blocks}, {run.model.crossing_width} values of a "
        "token cross: a checkpoint goes on with this cut alone"
    )


def told_times(run: RunConfig, times_s: Sequence[float]) -> Iterator[str]:
    """Times of blocks, the slowest stage of the run's cut, and the cut that they make best."""
    told = ", ".join(f"{1e3 * each:.1f}" for each in times_s)
    yield f"a microbatch, forward and backward, on this processor, ms by block: {told}"
    now = [stage_blocks(run, stage) for stage in range(run.stages)]
    borders = cheapest_cut(times_s, run.stages)
    best = [range(begin, end) for begin, end in itertools.pairwise(borders)]
    slowest_s, least_s = (
        max(sum(times_s[number] for number in blocks) for blocks in cut) for cut in (now, best)
    )
    if slowest_s <= WORTH * least_s:
        yield f"the cut is right: the slowest stage takes {1e3 * slowest_s:.1f} ms"
        return
    yield (
        f"the slowest stage takes {1e3 * slowest_s:.1f} ms; with run.cut = "
        f"{[len(blocks) for blocks in best]} it would take {1e3 * least_s:.1f} ms"
    )
