"""The time of a step of large stages over slow links, by each codec and module: the emulated mode.

Three stages of four layers of d = 4,096 at 40 TFLOP/s: servers that take the time of computing
and no processor, while all else is real (docs/simulation.md). The line of a middle stage carries
what both its neighbours are sent, so `--mbit` is shared between its two links, by the bytes that go
up and down. A token of that model is eight of one of d = 512, whose rows together have as many
bytes, and whose weights are small. A stage computes 8,278 tokens/s.
"""

import argparse
import dataclasses
import json
import os
from typing import Any

from results import show
from swarm_processes import FIRST_SERVER, Run, RunFailed, Site, events, steady, swarm
from wan_lab import Lab, Link, carried_bytes

from p2pswarm.plan.codec_costs import codec_of

STAGES = 3
MODEL_WIDTH, STAGE_LAYERS, FLOPS = 4_096, 4, 40e12
FORWARD_FLOPS = STAGE_LAYERS * 2 * 12 * MODEL_WIDTH**2  # of a token
BACKWARD_SHARE = 2.0
NARROWER = 8  # times: the model whose rows stand for those of the large one
ROWS, LENGTH = 16, 256
TOKENS = ROWS * LENGTH // NARROWER  # of the large model, in a microbatch
FORWARD_S = TOKENS * FORWARD_FLOPS / FLOPS
SERVE = (
    f'[serve]\nthreads = 1\ndevice = "emulated"\nemulated_forward_s = {FORWARD_S}\n'
    "stage = {stage}\n"
)
BF16 = "bf16"
EMULATED = {
    BF16: (BF16, BF16, 0),
    "int8/dither4": ("int8", "dither4", 0),
    "dither6/dither3": ("dither6", "dither3", 0),
    "dither4/dither3": ("dither4", "dither3", 0),
    "d/4,int8/dither4": ("int8", "dither4", 4),
    "d/4,dither6/dither3": ("dither6", "dither3", 4),
    "d/8,int8/dither4": ("int8", "dither4", 8),
    "d/8,dither6/dither3": ("dither6", "dither3", 8),
}
"""The codecs of activations and gradients, and the part of a row that a projector lets cross."""


def rehearse(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time the steps of each row, and print the table."""
    size = options.emulated_microbatches
    alone_s = (1 + BACKWARD_SHARE) * FORWARD_S * size
    print(f"{size} microbatches of {TOKENS} tokens a step: {alone_s:.2f} s of computing")
    found = [_row(name, options, _run(name, options)) for name in options.systems]
    rows = [row for row in found if row is not None]
    base_s = next((row["step_s"] for row in rows if row["system"] == BF16), None)
    show(
        ("system", "s a step", "bf16 over it", "over computing", "bytes/token", "load"),
        [
            (
                row["system"],
                f"{row['step_s']:.2f}",
                f"{base_s / row['step_s']:.1f}" if base_s else "-",
                f"{row['step_s'] / alone_s:.2f}",
                f"{row['bytes_per_token']:,.0f}",
                "-".join(map(str, row["load"])),
            )
            for row in rows
        ],
    )
    return rows


def _run(name: str, options: argparse.Namespace) -> Run:
    """The run of a row."""
    up, down, part = EMULATED[name]
    width = MODEL_WIDTH // NARROWER
    run = Run(
        name="slow links",
        steps=1 + options.emulated_steps,
        stages=STAGES,
        d_model=width,
        layers=STAGES,
        sequence_length=LENGTH,
        rows=ROWS,
        microbatches=options.emulated_microbatches,
        codec=up,
        backward=down,
        emulated=True,
        data=options.data,
    )
    if part:
        return dataclasses.replace(run, boundary="projector", boundary_width=width // part)
    return run


def _links(run: Run, options: argparse.Namespace) -> tuple[Link, Link]:
    """Both ways between two stages: together they have the rate of a line."""
    sizes = [codec_of(name).bytes_per_value for name in (run.codec, run.backward)]
    rates = (options.mbit * 1e6 * size / sum(sizes) for size in sizes)
    up, down = (Link(rate_bits_per_s=each, delay_s=options.rtt_ms / 2e3) for each in rates)
    return up, down


def _row(name: str, options: argparse.Namespace, run: Run) -> dict[str, Any] | None:
    """Train the first step and those that are measured; None if the run fails."""
    up, down = _links(run, options)
    before = os.getloadavg()[0]
    try:
        with Lab(FIRST_SERVER + STAGES, up) as lab:
            for host in range(FIRST_SERVER, FIRST_SERVER + STAGES - 1):
                lab.set_link(down, host + 1, host)
            site = Site("wan", lab.address, lab.enter)
            servers = [SERVE.format(stage=stage) for stage in range(STAGES)]
            with swarm(site, run, servers) as nodes:
                told = events(nodes.lines("trainer"))
                (begun_s, begun), (ended_s, ended) = steady(
                    name, told, 1, options.emulated_steps, lambda: carried_bytes(lab)
                )
    except RunFailed as error:
        print(f"  {name}: {error}")
        return None
    tokens = options.emulated_steps * run.microbatches * TOKENS
    row = {
        "system": name,
        "step_s": (ended_s - begun_s) / options.emulated_steps,
        "bytes_per_token": (ended - begun) / tokens,
        "mbit": options.mbit,
        "rtt_ms": options.rtt_ms,
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
    }
    print("  " + json.dumps(row), flush=True)
    return row
