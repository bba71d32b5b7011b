"""Whether a server's memory stays flat over many steps.

Two stages of two servers each, a trainer and a bootstrap node, every one a process through the real
command line. The resident memory of each is read from /proc after the warm-up and every `--every`
steps. Beside it stands what a server must hold: weights, two moments, the gradient sum, two reduced
gradients (the last one may be on its way), graphs, what is kept for stages that lose a sum, and
tensors that travel, all within the settings' limits. What is above that is Python, torch and the C
library.

    python bench/memory.py --json memory.json

Then one more server joins, and downloads its stage's state, while some more steps are done. The
others' peak meanwhile, less what they had, is what a newcomer costs: at most one window of copies
(`run/state/donor.py`), and the part of one more member in each average.

Ends with 1 if a process has grown by more than `--most-mib` since the warm-up, or a donor by more
than the window and that.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from swarm_processes import Nodes, Run, RunFailed, Site, events, swarm

from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.progress.events import Stepped
from p2pswarm.run.state.donor import COPIES_MAX
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.tensors.state_tree import PIECE_VALUES

STAGES, REPLICAS = 2, 2
MIB = 1 << 20
STATE_TENSORS, SUMS = 3, 3
"""Weights and moments; the sum, and two reduced gradients."""
GRAPH_MIB, KEPT_MIB, TRANSFER_MIB = 64, 16, 64
NEWCOMER_READINGS = 3  # a newcomer is there after as many times `--every` steps
LIMITS = f"[network]\npeer_mib = {TRANSFER_MIB}\ntotal_mib = {TRANSFER_MIB}\n"
MEMORY = f"graph_mib = {GRAPH_MIB}\nkept_mib = {KEPT_MIB}\n"
SERVE = f'[serve]\nthreads = 1\ndevice = "cpu"\n{MEMORY}{LIMITS}'
PIECE_MIB = STATE_TENSORS * PIECE_VALUES * 4 / MIB


def resident_mib(pid: int) -> float:
    """What a process has in memory; 0 once it is gone."""
    return status_mib(pid, "VmRSS:")


def peak_mib(pid: int) -> float:
    """The most that a process has had in memory since `begin_peak`; 0 once it is gone."""
    return status_mib(pid, "VmHWM:")


def status_mib(pid: int, field: str) -> float:
    """A field of a process's status (man 5 proc); 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def begin_peak(pid: int) -> None:
    """Let the peak begin with what the process has now (man 5 proc, clear_refs)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def follow(
    nodes: Nodes, run: Run, options: argparse.Namespace
) -> tuple[dict[str, dict[int, float]], dict[str, float]]:
    """The memory of each process, by step; what the servers rose by at most with a newcomer."""
    pids = dict(nodes.pids)
    seen: dict[str, dict[int, float]] = {name: {} for name in pids}
    for event in events(nodes.lines("trainer")):
        if not isinstance(event, Stepped):
            continue
        step = event.step
        if step == options.warmup_steps or (
            step % options.every == 0 and 0 < step <= options.steps
        ):
            for name, pid in pids.items():
                seen[name][step] = resident_mib(pid)
            told = ", ".join(f"{name} {at[step]:.0f}" for name, at in seen.items())
            print(f"  step {step}, {event.seconds:.0f} s: {told} MiB", flush=True)
        if step == options.steps:
            donors = {name: pid for name, pid in pids.items() if name.startswith("server")}
            for pid in donors.values():
                begin_peak(pid)
            nodes.start_server(SERVE)
        if step >= run.steps:
            return seen, {
                name: peak_mib(pid) - seen[name][options.steps] for name, pid in donors.items()
            }
    raise RunFailed("the trainer ended before the last step")


def must_hold_mib(run: Run) -> float:
    """The tensors of the largest stage, and the limits of what comes and goes."""
    model = ModelConfig(
        d_model=run.d_model, layers=run.layers, heads=4, sequence_length=run.sequence_length
    )
    config = RunConfig(stages=STAGES, steps=1, model=model)
    sizes = []
    for stage in range(STAGES):
        flat = FlatParameters(config, stage_blocks(config, stage), torch.device("cpu"))
        sizes.append(flat.params_N.nbytes)
    return max(sizes) * (STATE_TENSORS + SUMS) / MIB + GRAPH_MIB + KEPT_MIB + TRANSFER_MIB


def main() -> int:
    """Train, read, compare."""
    options = _options()
    run = Run(
        name="memory",
        steps=options.steps + NEWCOMER_READINGS * options.every,
        stages=STAGES,
        min_replicas=REPLICAS,
        d_model=options.d_model,
        layers=4,
        heads=4,
        sequence_length=64,
        microbatches=8,
        rows=2,
    )
    try:
        with swarm(Site(), run, [SERVE] * STAGES * REPLICAS, options.patience_s) as nodes:
            seen, donating = follow(nodes, run, options)
    except RunFailed as error:
        print(f"error: {error}")
        return 1
    return report(seen, donating, run, options)


def report(
    seen: dict[str, dict[int, float]],
    donating: dict[str, float],
    run: Run,
    options: argparse.Namespace,
) -> int:
    """A table, the growth, the file."""
    steps = sorted(next(iter(seen.values())))
    table = Table("MiB", *(f"step {step}" for step in steps), "grown", "with a newcomer", box=None)
    grown = {name: at[steps[-1]] - at[steps[0]] for name, at in seen.items()}
    for name, at in seen.items():
        rise = f"{donating[name]:+.1f}" if name in donating else ""
        table.add_row(name, *(f"{at[step]:.1f}" for step in steps), f"{grown[name]:+.1f}", rise)
    console = Console(width=160)
    console.print(table)
    servers = [grown[name] for name in donating]
    window_mib = COPIES_MAX * PIECE_MIB
    console.print(
        f"memory of a server: {must_hold_mib(run):.1f} MiB of tensors at most by the settings; "
        f"grown {min(servers):+.1f} to {max(servers):+.1f} MiB from step {steps[0]} to "
        f"{steps[-1]}; at most {max(donating.values()):+.1f} MiB while a newcomer joins "
        f"(one window of copies: {window_mib:.0f})",
        soft_wrap=True,
    )
    if options.json:
        figures = {"mib": seen, "grown_mib": grown, "must_hold_mib": must_hold_mib(run)}
        options.json.write_text(json.dumps(figures | {"donating_mib": donating}) + "\n")
    over_mib = max(donating.values()) - window_mib
    return int(max(*grown.values(), over_mib) > options.most_mib)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--warmup-steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--most-mib", type=float, default=8.0, help="growth that is no leak")
    parser.add_argument("--patience-s", type=float, default=3600.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
