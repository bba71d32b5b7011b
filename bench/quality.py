"""What codecs and modules cost in loss at equal steps: plain loops that round as a swarm would.

All see the same microbatches from the same first weights, and each is evaluated on held-out text
with its codecs on. The first has none; `bf16`, which loses next to nothing, says how far apart two
runs come by chance. A way is FORWARD/BACKWARD, one codec for both, and with "+" modules as
projector:64, or for the sums int-grid or powersgd:8: "projector:64+int8/dither4". Without options
the rows of docs/figures.md are trained.

    python bench/quality.py [--steps 1000] [--d-model 256] [--optimizer muon] [--json FILE]
    python bench/quality.py --forward dither6 --backward dither3 --json FILE
    python bench/quality.py --boundary projector --boundary-width 64 --forward int8 --json FILE
    python bench/quality.py --forward raw --delay 1    # what a delay costs
    python bench/quality.py --ways raw+powersgd:8 raw+int-grid
"""

import argparse
import dataclasses
import sys
from typing import Any

import torch
from results import show, write_json
from side_by_side import base_run, parser_of, train_side_by_side
from swarm_processes import STANDARD_LIBRARY

from p2pswarm.models.compute.bundle_spec import engine_bundles
from p2pswarm.settings.config import BOUNDARY_NAMES, POWERSGD, CodecConfig, RunConfig
from p2pswarm.tensors.codecs.registry import encode

RAW, GRID = "raw", "int-grid"
WAYS = (
    "bf16",
    "int8/dither4",
    "dither6/dither3",
    "dither5/dither3",
    "dither4/dither4",
    "raw+int-grid",
    "projector:64+int8/dither4",
    "projector:32+int8/dither4",
)


def with_way(run: RunConfig, way: str) -> RunConfig:
    """The run with the codecs, modules and sums of a way."""
    model, pair, averaging, rank = run.model, RAW, RAW, CodecConfig().averaging_rank
    for part in way.split("+"):
        name, _, width = part.partition(":")
        if name in BOUNDARY_NAMES:
            model = dataclasses.replace(model, boundary=name, boundary_width=int(width or 0))
        elif name == POWERSGD:
            averaging, rank = name, int(width or rank)
        elif part == GRID:
            averaging = part
        else:
            pair = part
    forward, _, backward = pair.partition("/")
    codecs = CodecConfig(
        activation=forward,
        gradient=backward or forward,
        averaging=averaging,
        averaging_rank=rank,
    )
    return dataclasses.replace(run, model=model, codecs=codecs)


def bytes_per_token(run: RunConfig) -> float:
    """The bytes that cross one boundary for a token, up and down together."""
    _, gives = engine_bundles(run, 0)
    total = 0
    for bundle, codec in (
        (gives, run.codecs.activation),
        (gives.gradient(), run.codecs.gradient),
    ):
        for key in bundle.keys:
            sent = encode(torch.ones(key.layout.shape), codec, 0, key=bytes(8))
            total += sent.meta.encoded_bytes
    return total / (run.batch.rows * run.model.sequence_length)


def trained(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """A row for each way, trained from one seed."""
    options.seed = seed
    run = base_run(options)
    optimizer = dataclasses.replace(
        run.optimizer, name=options.optimizer, warmup_steps=options.steps // 10
    )
    run = dataclasses.replace(run, stages=options.stages, optimizer=optimizer)
    ways = {way: with_way(run, way) for way in (RAW, *options.ways)}
    if options.delay:
        late = {"delay": options.delay, "delay_correction": not options.uncorrected}
        ways = {p: way if p == RAW else dataclasses.replace(way, **late) for p, way in ways.items()}
    found = train_side_by_side(ways, options)
    raw = found[RAW].held_out
    return [
        {
            "way": way,
            "seed": seed,
            "loss": found[way].held_out,
            "raw": raw,
            "share": found[way].held_out / raw - 1,
            "late_share": found[way].late / found[RAW].late - 1,
            "bytes_per_token": bytes_per_token(ways[way]),
        }
        for way in ways
    ]


def main() -> int:
    """Train, print a table, write it."""
    parser = parser_of(__doc__, STANDARD_LIBRARY)
    parser.set_defaults(
        suffixes=[".py"],
        steps=1000,
        d_model=256,
        rows=8,
        sequence_length=64,
        microbatches=1,
        learning_rate=8e-3,
    )
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--optimizer", default="muon", choices=("muon", "adamw"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--forward", default="", help="the codec of activations, instead of all")
    parser.add_argument("--backward", default="", help="of gradients; else as forward")
    parser.add_argument("--averaging", default=RAW, choices=(RAW, GRID, POWERSGD), help="of sums")
    parser.add_argument("--boundary", default="", choices=BOUNDARY_NAMES, help="modules at cuts")
    parser.add_argument("--boundary-width", type=int, default=0, help="0: a quarter of d_model")
    parser.add_argument("--ways", nargs="+", default=WAYS, help="to train beside raw")
    parser.add_argument("--delay", type=int, default=0, help="steps, of all but raw")
    parser.add_argument("--uncorrected", action="store_true", help="the delay")
    options = parser.parse_args()
    if options.delay and options.microbatches == 1:  # a delay is for two or more
        options.microbatches, options.rows = 2, options.rows // 2
    if options.forward or options.boundary or options.averaging != RAW:
        options.ways = [_alone(options)]
    rows = [row for seed in options.seeds for row in trained(options, seed)]
    plain = next(row for row in rows if row["way"] == RAW)
    shown = [
        (
            row["way"],
            row["seed"],
            f"{row['loss']:.4f}",
            f"{row['share']:+.2%}",
            f"{row['late_share']:+.2%}",
            f"{row['bytes_per_token']:,.0f}",
            f"{plain['bytes_per_token'] / 2 / row['bytes_per_token']:.1f}",
        )
        for row in rows
    ]
    heads = "way", "seed", "loss", "over raw", "in training", "bytes/token"
    show((*heads, "less than bf16"), shown)
    alone = len(rows) == 2  # raw and one way: what a script asked for
    write_json(options.json, rows[-1] if alone else rows)
    return 0


def _alone(options: argparse.Namespace) -> str:
    """The way that the options describe."""
    pair = options.forward or RAW
    parts = [f"{options.boundary}:{options.boundary_width}"] if options.boundary else []
    parts.append(f"{pair}/{options.backward or pair}")
    return "+".join([*parts, options.averaging] if options.averaging != RAW else parts)


if __name__ == "__main__":
    sys.exit(main())
