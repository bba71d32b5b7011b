"""Whether a server's memory stays flat over many steps.

Two stages of two servers each, a trainer and a bootstrap node, every one a process through the real
command line. The resident memory of each is read from /proc after the warm-up and every `--every`
steps. Beside it stands what a server must hold: weights, two moments, the gradient sum, two reduced
gradients (the last one may be on its way), graphs and tensors that travel within the settings'
limits. What is above that is Python, torch and the C library.

    python bench/memory.py --json memory.json

Ends with 1 if a process has grown by more than `--most-mib` since the warm-up.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from swarm_processes import Nodes, Run, RunFailed, Site, events, swarm

from p2pswarm.compute.flat_parameters import FlatParameters
from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.models.partition import stage_blocks
from p2pswarm.progress.events import Stepped

STAGES, REPLICAS = 2, 2
MIB = 1 << 20
STATE_TENSORS, SUMS = 3, 3
"""Weights and moments; the sum, and two reduced gradients."""
GRAPH_MIB, TRANSFER_MIB = 64, 64


def resident_mib(pid: int) -> float:
    """What a process has in memory; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def follow(nodes: Nodes, run: Run, options: argparse.Namespace) -> dict[str, dict[int, float]]:
    """The memory of each process, by step."""
    seen: dict[str, dict[int, float]] = {name: {} for name in nodes.pids}
    for event in events(nodes.lines("trainer")):
        if not isinstance(event, Stepped):
            continue
        step = event.step
        if step == options.warmup_steps or (step % options.every == 0 and step):
            for name, pid in nodes.pids.items():
                seen[name][step] = resident_mib(pid)
            told = ", ".join(f"{name} {at[step]:.0f}" for name, at in seen.items())
            print(f"  step {step}, {event.seconds:.0f} s: {told} MiB", flush=True)
        if step >= run.steps:
            return seen
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
    return max(sizes) * (STATE_TENSORS + SUMS) / MIB + GRAPH_MIB + TRANSFER_MIB


def main() -> int:
    """Train, read, compare."""
    options = _options()
    run = Run(
        name="memory",
        steps=options.steps,
        stages=STAGES,
        min_replicas=REPLICAS,
        d_model=options.d_model,
        layers=4,
        heads=4,
        sequence_length=64,
        microbatches=8,
        rows=2,
    )
    limits = f"[network]\npeer_mib = {TRANSFER_MIB}\ntotal_mib = {TRANSFER_MIB}\n"
    serve = f'[serve]\nthreads = 1\ndevice = "cpu"\ngraph_mib = {GRAPH_MIB}\n{limits}'
    try:
        with swarm(Site(), run, [serve] * STAGES * REPLICAS, options.patience_s) as nodes:
            seen = follow(nodes, run, options)
    except RunFailed as error:
        print(f"error: {error}")
        return 1
    return report(seen, run, options)


def report(seen: dict[str, dict[int, float]], run: Run, options: argparse.Namespace) -> int:
    """A table, the growth, the file."""
    steps = sorted(next(iter(seen.values())))
    table = Table("MiB", *(f"step {step}" for step in steps), "grown", box=None)
    grown = {name: at[steps[-1]] - at[steps[0]] for name, at in seen.items()}
    for name, at in seen.items():
        table.add_row(name, *(f"{at[step]:.1f}" for step in steps), f"{grown[name]:+.1f}")
    console = Console(width=160)
    console.print(table)
    console.print(f"a server must hold {must_hold_mib(run):.1f} MiB of tensors at most")
    if options.json:
        figures = {"mib": seen, "grown_mib": grown, "must_hold_mib": must_hold_mib(run)}
        options.json.write_text(json.dumps(figures) + "\n")
    return int(max(grown.values()) > options.most_mib)


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
