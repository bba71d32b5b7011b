"""What the swarm costs: its tokens/s over those of a plain PyTorch loop.

Two stages of one server each, a trainer and a bootstrap node, every one a process through the
real command line, against one process with an ordinary loop: same model, microbatches and text,
all on one and the same processor. So whatever the swarm does beyond the loop's own arithmetic takes
time from it: two processes' context switches, encryption, messages, digests. With `--device cuda`
the loop and both servers share the GPU and the processes are not pinned.

Runs alternate and medians count. The processor seconds a token of both are told as well, and the
ratio of their fastest steps: these depend less on whatever else the machine does.

    python bench/overhead.py --json overhead.json
    python bench/overhead.py --llama      # a Llama of transformers, of 29 million weights
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from results import command_line, show, write_json
from swarm_processes import Nodes, Run, RunFailed, Site, events, plain, steady, swarm

STAGES = 2
LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 9,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
"""A config.json of 29.3 million weights; a byte is a token."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run after its warm-up."""

    kind: str
    tokens_per_s: float
    cpu_us_per_token: dict[str, float]
    """By process; on a GPU's machine, of the processor all the same."""
    fastest_s: float
    """The step that the machine's other users disturbed least."""

    @property
    def cpu_us(self) -> float:
        """Of all processes."""
        return sum(self.cpu_us_per_token.values())


def measure(kind: str, nodes: Nodes, source: str, run: Run, warmup_steps: int) -> Measured:
    """Follow one run to its end."""
    steps = run.steps - warmup_steps
    ends_s: list[float] = []

    def sample() -> dict[str, float]:
        ends_s.append(time.perf_counter())
        return nodes.cpu_s()

    told = events(nodes.lines(source))
    (begun_s, cpu_before), (ended_s, cpu) = steady(kind, told, warmup_steps, steps, sample)
    tokens = steps * run.step_tokens
    spent = {name: (cpu[name] - cpu_before[name]) / tokens * 1e6 for name in cpu}
    fastest_s = min(end_s - begin_s for begin_s, end_s in pairwise(ends_s[warmup_steps - 1 :]))
    return Measured(kind, tokens / (ended_s - begun_s), spent, fastest_s)


def swarm_run(run: Run, options: argparse.Namespace) -> Measured:
    serve = f'[serve]\nthreads = 1\ndevice = "{options.device}"\n'
    with swarm(Site(), run, [serve] * STAGES, options.patience_s) as nodes:
        return measure("swarm", nodes, "trainer", run, options.warmup_steps)


def plain_run(run: Run, options: argparse.Namespace) -> Measured:
    with plain(run, ["--device", options.device], options.patience_s) as nodes:
        return measure("plain", nodes, "plain", run, options.warmup_steps)


def main() -> int:
    """Measure, print, write."""
    options = _options()
    if options.device == "cpu":
        os.sched_setaffinity(0, {options.processor})  # our children inherit it
    with tempfile.TemporaryDirectory() as folder:
        return compare(_run(options, Path(folder)), options)


def compare(run: Run, options: argparse.Namespace) -> int:
    """Train by both ways in turns; the exit code."""
    runs: dict[str, list[Measured]] = {"swarm": [], "plain": []}
    ways: dict[str, Callable[[Run, argparse.Namespace], Measured]] = {
        "swarm": swarm_run,
        "plain": plain_run,
    }
    try:
        for _ in range(options.repeats):
            for kind, way in ways.items():
                runs[kind].append(way(run, options))
    except RunFailed as error:
        print(f"error: {error}")
        return 1
    report(runs, run, options)
    return 0


def _run(options: argparse.Namespace, folder: Path) -> Run:
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return Run(
        name="overhead",
        family=f"hf:{folder}" if options.llama else "gpt",
        precision=options.precision,
        steps=options.warmup_steps + options.steps,
        stages=STAGES,
        d_model=options.d_model,
        layers=options.layers,
        sequence_length=options.sequence_length,
        rows=options.rows,
        microbatches=options.microbatches,
        window=options.window,
        codec=options.codec,
    )


def report(runs: dict[str, list[Measured]], run: Run, options: argparse.Namespace) -> None:
    """Tables, the ratio, the file."""
    rate = {k: statistics.median(m.tokens_per_s for m in several) for k, several in runs.items()}
    cpu_us = {k: statistics.median(m.cpu_us for m in several) for k, several in runs.items()}
    fastest_s = {kind: min(m.fastest_s for m in several) for kind, several in runs.items()}
    ratio = rate["swarm"] / rate["plain"]
    rows = []
    for pair in zip(*runs.values(), strict=True):
        for one in pair:
            parts = ", ".join(f"{name} {us:.1f}" for name, us in one.cpu_us_per_token.items())
            shown = f"{one.tokens_per_s:.0f}", f"{one.fastest_s:.2f}", f"{one.cpu_us:.1f}"
            rows.append((one.kind, *shown, parts))
    show(("", "tokens/s", "fastest step, s", "processor us a token", "of which"), rows)
    print(
        f"ratio {ratio:.3f} in time, {cpu_us['plain'] / cpu_us['swarm']:.3f} in processor time, "
        f"{fastest_s['plain'] / fastest_s['swarm']:.3f} of the fastest steps"
    )
    figures = {
        "ratio": ratio,
        "swarm_tokens_per_s": rate["swarm"],
        "plain_tokens_per_s": rate["plain"],
        "d_model": run.d_model,
        "processor_ratio": cpu_us["plain"] / cpu_us["swarm"],
        "fastest_ratio": fastest_s["plain"] / fastest_s["swarm"],
        "device": options.device,
    }
    write_json(options.json, figures)


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--rows", type=int, default=2, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=16, help="a step")
    parser.add_argument("--window", type=int, default=0, help="microbatches in flight")
    parser.add_argument("--llama", action="store_true", help="of transformers, instead of our own")
    parser.add_argument("--precision", default="full", help="full or bf16")
    parser.add_argument("--codec", default="bf16", help="of activations and gradients")
    parser.add_argument("--steps", type=int, default=4, help="measured, after the warm-up")
    parser.add_argument("--warmup-steps", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="of both; medians count")
    parser.add_argument("--device", default="cpu", help="of the loop and the servers")
    parser.add_argument(
        "--processor",
        type=int,
        default=max(os.sched_getaffinity(0)),
        help="all processes run on this one, unless on a GPU",
    )
    parser.add_argument("--quick", action="store_true", help="shorter steps, once: a minute")
    parser.add_argument("--patience-s", type=float, default=900.0, help="for one run")
    options = parser.parse_args()
    if options.quick:
        options.microbatches, options.steps, options.repeats = 8, 2, 1
    return options


if __name__ == "__main__":
    sys.exit(main())
