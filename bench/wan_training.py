"""Training across a wide-area network, as a share of the same swarm on one machine's loopback.

A trainer, two stages of one server each and a bootstrap node, every one a process through the
real command line. First all on 127.0.0.1, then each on a host of its own in the WAN lab
(`tests/wanlab`), with the same run: same model, microbatches and steps; in turns, and medians
count. What the network takes is each step's fill, drain and commit, some ten one-way delays, unless
bandwidth or too small a window add to it; so the share depends on how long a step computes. A
machine that computes for others too makes steps longer and flatters it; so it is also told with
the time taken out for which the servers' compute threads were ready and waited for a processor:
about what a quiet machine would show. The lab's emulator runs on the same processors and counts
against the WAN.

Also: what the trainer's links carry for each microbatch, over the bytes of its activations
(those that pass from one stage to the next, as encoded, one way).

    python bench/wan_training.py --json wan_training.json
"""

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from swarm_processes import ROOT, TRAINER, Nodes, Run, RunFailed, Site, events, steady, swarm

sys.path.insert(0, str(ROOT))

from tests.wanlab.lab import Lab, LabUnavailable
from tests.wanlab.link import Link

STAGES = 2
HOSTS = 2 + STAGES  # the trainer's, the bootstrap node's, and one a server
SERVE = '[serve]\nthreads = 1\ndevice = "cpu"\n'
BYTES_PER_NUMBER = {"raw": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run after its warm-up."""

    site: str
    tokens_per_s: float
    step_s: float
    quiet_step_s: float
    """Of the slower server, less the time that its compute thread waited for a processor."""
    cpu_us_per_token: float
    """Processor time of all nodes; the emulator's is not in it."""
    trainer_bytes: float
    """What the trainer's links carried for a microbatch, both ways; 0 on loopback."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of a swarm at one moment."""

    cpu_s: float
    """Of all nodes."""
    trainer_bytes: int
    threads: dict[tuple[str, str], tuple[float, float]]
    """By server and thread: seconds on a processor, and seconds ready to run without one."""


def threads_of(nodes: Nodes) -> dict[tuple[str, str], tuple[float, float]]:
    """The kernel's account of the servers' threads: schedstat in proc(5)."""
    accounts = {}
    for name, pid in nodes.pids.items():
        for thread in Path(f"/proc/{pid}/task").iterdir() if name.startswith("server") else ():
            with contextlib.suppress(OSError):  # a thread that has just ended
                ran_ns, waited_ns, _ = (thread / "schedstat").read_text().split()
                accounts[name, thread.name] = (int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    return accounts


def quiet_s(begin: Sample, end: Sample, seconds: float) -> float:
    """`seconds` less what the compute thread waited for a processor, of the slower server."""
    ran: dict[str, list[tuple[float, float]]] = {}
    for (name, thread), (ran_s, waited_s) in end.threads.items():
        ran_before_s, waited_before_s = begin.threads.get((name, thread), (0.0, 0.0))
        ran.setdefault(name, []).append((ran_s - ran_before_s, waited_s - waited_before_s))
    return max(seconds - max(several)[1] for several in ran.values())


def measure(
    site: Site, run: Run, options: argparse.Namespace, trainer_bytes: Callable[[], int]
) -> Measured:
    """Train once."""
    with swarm(site, run, [SERVE] * STAGES, options.patience_s) as nodes:
        told = events(nodes.lines("trainer"))
        begin, end = steady(
            site.name,
            told,
            options.warmup_steps,
            options.steps,
            lambda: Sample(sum(nodes.cpu_s().values()), trainer_bytes(), threads_of(nodes)),
        )
    seconds = end[0] - begin[0]
    before, after = begin[1], end[1]
    tokens = options.steps * run.step_tokens
    return Measured(
        site=site.name,
        tokens_per_s=tokens / seconds,
        step_s=seconds / options.steps,
        quiet_step_s=quiet_s(before, after, seconds) / options.steps,
        cpu_us_per_token=(after.cpu_s - before.cpu_s) / tokens * 1e6,
        trainer_bytes=(after.trainer_bytes - before.trainer_bytes)
        / (options.steps * run.microbatches),
    )


@contextlib.contextmanager
def open_lab(options: argparse.Namespace) -> Iterator[tuple[Site, Callable[[], int]]]:
    """Every process on a host of its own, and what the trainer's links have carried so far."""
    link = Link(
        rate_bits_per_s=options.rate_mbit * 1e6, delay_s=options.rtt_ms / 2e3, loss=options.loss
    )
    with Lab(HOSTS, link) as lab:
        print(lab.describe(), flush=True)
        yield (
            Site("wan", lab.address, lab.enter),
            lambda: sum(c.wire_bytes for road, c in lab.counts().items() if TRAINER in road),
        )


def main() -> int:
    """Measure, print, write."""
    options = _options()
    run = Run(
        name="wan training",
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
    runs: dict[str, list[Measured]] = {"localhost": [], "wan": []}
    try:
        for _ in range(options.repeats):
            with open_lab(options) as (site, trainer_bytes):
                runs["localhost"].append(measure(Site(), run, options, lambda: 0))
                runs["wan"].append(measure(site, run, options, trainer_bytes))
    except LabUnavailable as reason:
        print(reason)
        return 2
    except RunFailed as error:
        print(f"error: {error}")
        return 1
    report(runs, run, options)
    return 0


def report(runs: dict[str, list[Measured]], run: Run, options: argparse.Namespace) -> None:
    """Tables, the ratio, the file."""
    rate = {k: statistics.median(m.tokens_per_s for m in several) for k, several in runs.items()}
    ratio = rate["wan"] / rate["localhost"]
    quiet = {k: statistics.median(m.quiet_step_s for m in several) for k, several in runs.items()}
    quiet_ratio = quiet["localhost"] / quiet["wan"]
    carried_bytes = statistics.median(m.trainer_bytes for m in runs["wan"])
    tokens = run.rows * run.sequence_length
    activation_bytes = tokens * run.d_model * BYTES_PER_NUMBER[run.codec]

    table = Table(
        *("swarm on", "tokens/s", "s a step", "less waits", "processor us a token"), box=None
    )
    for pair in zip(*runs.values(), strict=True):
        for m in pair:
            steps_s = (f"{m.step_s:.2f}", f"{m.quiet_step_s:.2f}")
            table.add_row(m.site, f"{m.tokens_per_s:.0f}", *steps_s, f"{m.cpu_us_per_token:.0f}")
    Console(width=120).print(table)
    print(f"ratio {ratio:.3f}; {quiet_ratio:.3f} less the waits for a processor")
    print(
        f"the trainer's links: {carried_bytes:.0f} bytes a microbatch, "
        f"{carried_bytes / activation_bytes:.2%} of {activation_bytes} bytes of activations"
    )
    if options.json:
        summary = {
            "ratio": ratio,
            "swarm_tokens_per_s": rate["wan"],
            "plain_tokens_per_s": rate["localhost"],
            "d_model": run.d_model,
            "ratio_less_waits": quiet_ratio,
            "trainer_bytes_per_microbatch": carried_bytes,
            "activation_bytes": activation_bytes,
        }
        options.json.write_text(json.dumps(summary) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate-mbit", type=float, default=200.0, help="of each link")
    parser.add_argument("--rtt-ms", type=float, default=100.0)
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets, each way")
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--rows", type=int, default=2, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=32, help="a step")
    parser.add_argument("--window", type=int, default=16, help="microbatches in flight")
    parser.add_argument("--codec", choices=BYTES_PER_NUMBER, default="bf16")
    parser.add_argument("--steps", type=int, default=2, help="measured, after the warm-up")
    parser.add_argument("--warmup-steps", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="of both; medians count")
    parser.add_argument("--patience-s", type=float, default=900.0, help="for one run")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
