"""Training across a wide-area network, as a share of the same swarm on one machine's loopback.

A trainer, two stages of one server each and a bootstrap node, every one a process through the
real command line. First all on 127.0.0.1, then each on a host of its own in the WAN lab
(`tests/wanlab`), with the same run: same model, microbatches and steps; in turns, and medians
count. What the network takes is each step's fill, drain and commit, some ten one-way delays, unless
bandwidth or too small a window add to it; so the share depends on how long a step computes. A
machine that computes for others too makes steps longer and flatters it: run it when nothing else
runs. The lab's emulator runs on the same processors and counts against the WAN.

Also: what the trainer's links carry for each microbatch, over the bytes of its activations
(those that pass from one stage to the next, as encoded, one way).

    python bench/wan_training.py --json wan_training.json
    python bench/wan_training.py --delay 1 --choice measured --optimizer muon --steps 6
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

from results import command_line, show, write_json
from swarm_processes import SERVE, TRAINER, Run, RunFailed, Site, events, steady, swarm
from wan_lab import Lab, LabUnavailable, add_link_options, carried_bytes, link_of

STAGES = 2
HOSTS = 2 + STAGES  # the trainer's, the bootstrap node's, and one a server
BYTES_PER_NUMBER = {"raw": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run after its warm-up."""

    site: str
    tokens_per_s: float
    step_s: float
    cpu_us_per_token: float
    """Processor time of all nodes; the emulator's is not in it."""
    trainer_bytes: float
    """What the trainer's links carried for a microbatch, both ways; 0 on loopback."""


def measure(
    site: Site, run: Run, options: argparse.Namespace, trainer_bytes: Callable[[], int]
) -> Measured:
    """Train once."""
    steps = options.steps
    with swarm(site, run, [SERVE] * STAGES, options.patience_s) as nodes:
        told = events(nodes.lines("trainer"))
        (begun_s, before), (ended_s, after) = steady(
            site.name,
            told,
            options.warmup_steps,
            steps,
            lambda: (sum(nodes.cpu_s().values()), trainer_bytes()),
        )
    seconds, tokens = ended_s - begun_s, steps * run.step_tokens
    return Measured(
        site=site.name,
        tokens_per_s=tokens / seconds,
        step_s=seconds / steps,
        cpu_us_per_token=(after[0] - before[0]) / tokens * 1e6,
        trainer_bytes=(after[1] - before[1]) / (steps * run.microbatches),
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
        choice=options.choice,
        delay=options.delay,
        optimizer=options.optimizer,
    )
    runs: dict[str, list[Measured]] = {"localhost": [], "wan": []}
    try:
        for _ in range(options.repeats):
            with Lab(HOSTS, link_of(options)) as lab:
                print(lab.describe(), flush=True)
                runs["localhost"].append(measure(Site(), run, options, lambda: 0))
                site = Site("wan", lab.address, lab.enter)
                runs["wan"].append(measure(site, run, options, lambda lab=lab: carried(lab)))
    except LabUnavailable as reason:
        print(reason)
        return 2
    except RunFailed as error:
        print(f"error: {error}")
        return 1
    report(runs, run, options)
    return 0


def carried(lab: Lab) -> int:
    """The bytes that the trainer's links have carried so far."""
    return carried_bytes(lab, lambda road: TRAINER in road)


def report(runs: dict[str, list[Measured]], run: Run, options: argparse.Namespace) -> None:
    """Tables, the ratio, the file."""
    rate = {k: statistics.median(m.tokens_per_s for m in several) for k, several in runs.items()}
    ratio = rate["wan"] / rate["localhost"]
    carried_bytes = statistics.median(m.trainer_bytes for m in runs["wan"])
    tokens = run.rows * run.sequence_length
    activation_bytes = tokens * run.d_model * BYTES_PER_NUMBER[run.codec]

    rows = [
        (m.site, f"{m.tokens_per_s:.0f}", f"{m.step_s:.2f}", f"{m.cpu_us_per_token:.0f}")
        for pair in zip(*runs.values(), strict=True)
        for m in pair
    ]
    show(("swarm on", "tokens/s", "s a step", "processor us a token"), rows)
    print(f"ratio {ratio:.3f}")
    print(
        f"the trainer's links: {carried_bytes:.0f} bytes a microbatch, "
        f"{carried_bytes / activation_bytes:.2%} of {activation_bytes} bytes of activations"
    )
    summary = {
        "ratio": ratio,
        "swarm_tokens_per_s": rate["wan"],
        "plain_tokens_per_s": rate["localhost"],
        "d_model": run.d_model,
        "trainer_bytes_per_microbatch": carried_bytes,
        "activation_bytes": activation_bytes,
    }
    write_json(options.json, summary)


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    add_link_options(parser)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--rows", type=int, default=2, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=32, help="a step")
    parser.add_argument("--window", type=int, default=16, help="microbatches in flight")
    parser.add_argument("--codec", choices=BYTES_PER_NUMBER, default="bf16")
    parser.add_argument("--choice", choices=("fixed", "measured"), default="fixed")
    parser.add_argument("--delay", type=int, choices=(0, 1), default=0, help="steps that overlap")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--steps", type=int, default=2, help="measured, after the warm-up")
    parser.add_argument("--warmup-steps", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="of both; medians count")
    parser.add_argument("--patience-s", type=float, default=900.0, help="for one run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
