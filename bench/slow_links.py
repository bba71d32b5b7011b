"""The time to one loss over slow links: ours by each codec, and what a user would pick instead.

    python bench/slow_links.py --mbit 20 [--systems bf16 gloo-ddp ...] [--json FILE]
    python bench/slow_links.py --mbit 20 --emulated [--json FILE]
    python bench/slow_links.py --picture slow_links.svg 20.json 60.json 200.json

Hosts are those of the WAN lab (tests/wanlab): the kernel's own TCP over links of `--mbit` and
`--rtt-ms`. All systems train one run on as many hosts as it has stages. Our trainer computes
nothing, so it runs beside the server of the first, as the first rank of each of the others also
does what their run needs once; `--trainer-apart` gives it a host of its own. All have the same
blocks, first weights, microbatches, optimizer and rates (`slow_links_peers.py`). The clock starts
with the first microbatch, when all are up. It ends with the first step whose loss, the mean of
the last `--smooth` steps, is at most `--loss`. That is the loss of training: each microbatch is
text that was not seen before, and to evaluate would take time and bytes of one side more than of
another. Who does not get there in `--patience-s` has no time. Bytes are those of all links.

    bf16, int8/dither4, ...   ours, with codecs of activations and gradients
    automatic                 ours, as the coordinator chooses by what it measures
    projector                 ours, modules at the cut with int8 and dither4 on top
    delay-1                   ours, dither6/dither3 and one step of delay
    bf16+delay-1              ours, bf16 and one step of delay
    gloo-..., hivemind-...    see slow_links_peers.py
    plain-loop                one process without links

At the defaults a plain loop computes 20,000 tokens/s on one of the two hyperthreads of a quiet
machine (docs/figures.md), and a link of 20 Mbit/s carries 9,766 tokens/s in bf16: 512 bytes a
token, half of them each way. So all wait for the link there, until half of these bytes cross.

`--emulated` times steps of stages that only take the time of computing (slow_links_emulated.py).
`--picture` draws what runs at several `--mbit` have written.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from peers import NoPeer, hivemind_python
from results import command_line, show, target, write_json
from slow_links_emulated import EMULATED, rehearse
from swarm_processes import (
    FIRST_SERVER,
    SERVE,
    STANDARD_LIBRARY,
    TRAINER,
    Gone,
    NodeListener,
    Nodes,
    Run,
    RunFailed,
    Site,
    first_match,
    plain,
    swarm,
)
from wan_lab import Lab, LabUnavailable, Link, carried_bytes

from p2pswarm.progress.events import Ended, Started, Stepped

PEERS = Path(__file__).with_name("slow_links_peers.py")
NOT_SERVERS = FIRST_SERVER  # the trainer's and the bootstrap node's hosts
START_S = 120.0  # for processes to be up, beside the patience
RUNGS = ("int8/dither4", "dither6/dither3", "dither4/dither3")
BF16, AUTOMATIC, PROJECTOR, LOOP = "bf16", "automatic", "projector", "plain-loop"
DELAYS = "delay-1", "bf16+delay-1"
PIPELINES = ("gloo-1f1b", "gloo-gpipe")
DILOCO = "hivemind-diloco", "hivemind-local"
OURS = (BF16, *RUNGS, AUTOMATIC, PROJECTOR, *DELAYS)
THEIRS = ("gloo-1f1b", "gloo-1f1b-bf16", "gloo-gpipe-bf16", "gloo-ddp", "gloo-ddp-fp16", *DILOCO)
SYSTEMS = (LOOP, *OURS, *THEIRS)
FOREVER = 10**6  # steps: we end the run
TICKS_S = (10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500)
INK, FAINT = "#222222", "#bbbbbb"
COLORS = {"ours": "#1f5f99", "theirs": "#c0392b"}


def coded(run: Run, pair: str) -> Run:
    """The run with codecs of activations and gradients, such as int8/dither4."""
    up, _, down = pair.partition("/")
    return dataclasses.replace(run, codec=up, backward=down)


def run_of(system: str, run: Run) -> Run:
    """The run as one of our rows has it."""
    match system:
        case "automatic":
            return dataclasses.replace(run, choice="measured")
        case "projector":
            return dataclasses.replace(coded(run, RUNGS[0]), boundary="projector")
        case "delay-1":
            return dataclasses.replace(coded(run, RUNGS[1]), delay=1)
        case "bf16+delay-1":
            return dataclasses.replace(coded(run, BF16), delay=1)
        case "plain-loop":
            return run
        case pair:
            return coded(run, pair)


@dataclass
class Progress:
    """How far a system has come."""

    target: float
    smooth: int
    tellers: int
    """As many processes tell the loss of each step."""
    carried: Callable[[], int]
    """The bytes that all links have carried."""
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """At the last step that all have told."""
    bytes: int = 0
    """Since the first microbatch."""
    _begun_bytes: int | None = None
    _told: dict[int, list[Stepped]] = field(default_factory=lambda: defaultdict(list))

    def on_started(self) -> None:
        """The first microbatch is on its way."""
        if self._begun_bytes is None:
            self._begun_bytes = self.carried()

    def on_step(self, event: Stepped) -> None:
        """One of the tellers is done with a step."""
        told = self._told[event.step]
        told.append(event)
        if len(told) == self.tellers:
            self.losses.append(statistics.fmean(each.loss for each in told))
            self.seconds = max(each.seconds for each in told)
            self.bytes = self.carried() - (self._begun_bytes or 0)
            del self._told[event.step]

    @property
    def loss(self) -> float:
        """The smoothed one, as far as there is any."""
        enough = len(self.losses) >= self.smooth
        return statistics.fmean(self.losses[-self.smooth :]) if enough else float("inf")

    @property
    def is_there(self) -> bool:
        """Whether the loss is reached."""
        return self.loss <= self.target


def watch(nodes: Nodes, names: Sequence[str], progress: Progress, patience_s: float) -> None:
    """Listen until the loss is reached or patience is over; RunFailed if somebody ends before."""
    listener = NodeListener(nodes)
    for name in names:
        listener.listen_to(name)
    latest_s = time.monotonic() + START_S + patience_s
    while not progress.is_there and progress.seconds <= patience_s:
        told = listener.next(max(0.0, latest_s - time.monotonic()))
        if told is None:
            return
        match told[1]:
            case Started():
                progress.on_started()
            case Stepped() as event:
                progress.on_step(event)
            case Ended() as event:
                raise RunFailed(event.outcome)
            case Gone(failed):
                raise failed or RunFailed(f"{told[0]} ended early")
            case _:
                continue


def train(system: str, run: Run, options: argparse.Namespace) -> Progress:
    """Train by one system until it is there; RunFailed if it fails."""
    link = Link(rate_bits_per_s=options.mbit * 1e6, delay_s=options.rtt_ms / 2e3)
    aim, longest_s = (options.loss, options.smooth), START_S + options.patience_s
    if system == LOOP:
        progress = Progress(*aim, 1, lambda: 0)
        with plain(run, patience_s=longest_s) as nodes:
            watch(nodes, ["plain"], progress, options.patience_s)
        return progress
    with Lab(NOT_SERVERS + run.stages, link) as lab:
        carried = partial(carried_bytes, lab)
        site = Site("wan", lab.address, lab.enter)
        if system in OURS and not options.trainer_apart:
            site = Site(
                "wan", lambda at: lab.address(_shared(at)), lambda at: lab.enter(_shared(at))
            )
        if system in OURS:
            progress = Progress(*aim, 1, carried)
            with swarm(site, run_of(system, run), [SERVE] * run.stages, longest_s) as nodes:
                watch(nodes, ["trainer"], progress, options.patience_s)
            return progress
        alone = system.startswith(PIPELINES)  # its last stage knows the losses
        progress = Progress(*aim, 1 if alone else run.stages, carried)
        with tempfile.TemporaryDirectory() as folder, Nodes(site, Path(folder), longest_s) as nodes:
            try:
                names = start_members(nodes, lab, system, run, options)
                watch(nodes, names, progress, options.patience_s)
            finally:
                lab.close()  # and with it whatever the members have started
    return progress


def _shared(host: int) -> int:
    """The host of a process where the trainer is beside the first server."""
    return FIRST_SERVER if host == TRAINER else host


def start_members(
    nodes: Nodes, lab: Lab, system: str, run: Run, options: argparse.Namespace
) -> list[str]:
    """Start the processes of one of the others, where our servers would be."""
    hosts = range(FIRST_SERVER, FIRST_SERVER + run.stages)
    config = nodes.write("run", run.settings())
    python = hivemind_python() if system in DILOCO else sys.executable
    about = ("--config", config, "--system", system, "--local-steps", options.local_steps)
    addresses = ("--address", *map(lab.address, hosts))
    names, seed = [], ""
    for rank, host in enumerate(hosts):
        names.append(f"member {rank}")
        command = (python, PEERS, *about, "--rank", rank, *addresses, "--seed", seed)
        nodes.start_program(names[-1], host, [str(word) for word in command])
        if system in DILOCO and not seed:
            seed = first_match(nodes.lines(names[0]), r"^at (\S+)")
    return names


def row_of(system: str, run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Train by one system; its figures."""
    before, reason = os.getloadavg()[0], ""
    progress = Progress(0.0, 1, 1, lambda: 0)
    try:
        progress = train(system, run, options)
    except (RunFailed, NoPeer) as error:
        reason = str(error)
        print(f"  {system}: {reason}")
    steps = len(progress.losses)
    tokens = steps * run.step_tokens
    row = {
        "system": system,
        "seconds_to_loss": progress.seconds if progress.is_there else None,
        "bytes_per_token": progress.bytes / tokens if steps else None,
        "mbit": options.mbit,
        "rtt_ms": options.rtt_ms,
        "steps": steps,
        "loss": progress.loss if steps >= options.smooth else None,
        "tokens_per_s": tokens / progress.seconds if steps else None,
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
        "reason": reason,
    }
    print("  " + json.dumps(row), flush=True)
    return row


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train by each system in turn, and print the table."""
    run = Run(
        name="slow links",
        steps=FOREVER,
        stages=options.stages,
        d_model=options.d_model,
        layers=options.layers,
        sequence_length=options.sequence_length,
        rows=options.rows,
        microbatches=options.microbatches,
        optimizer=options.optimizer,
        schedule={
            "learning_rate": options.learning_rate,
            "warmup_steps": options.warmup_steps,
            "schedule": "constant",
        },
        data=options.data,
    )
    carries = options.mbit * 1e6 / 8 / (2 * run.d_model)
    print(f"{options.mbit:g} Mbit/s, {options.rtt_ms:g} ms: a link carries {carries:.0f} tokens/s")
    rows = [row_of(system, run, options) for system in options.systems]
    base = next((row["seconds_to_loss"] for row in rows if row["system"] == BF16), None)
    columns = "system", "s to the loss", "bf16 over it", "steps", "tokens/s", "bytes/token", "load"
    show(
        columns,
        [
            (
                row["system"],
                _figure(row["seconds_to_loss"], ".1f"),
                _figure(base and row["seconds_to_loss"] and base / row["seconds_to_loss"], ".2f"),
                row["steps"],
                _figure(row["tokens_per_s"], ",.0f"),
                _figure(row["bytes_per_token"], ",.0f"),
                "-".join(map(str, row["load"])),
            )
            for row in rows
        ],
    )
    print(f"loss {options.loss}, the mean of {options.smooth} steps of {run.step_tokens} tokens")
    return rows


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the seconds of each system over the rate of the links; the suffix says the format."""
    import matplotlib as mpl  # noqa: PLC0415 - only where a picture is asked for
    from matplotlib.figure import Figure  # noqa: PLC0415

    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["mbit"]):
        if row["seconds_to_loss"] is not None and row["system"] != LOOP:
            lines[row["system"]].append((row["mbit"], row["seconds_to_loss"]))
    marks = "osD^vPX<>*hd"
    with mpl.rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        axes = figure.subplots()
        for number, (system, points) in enumerate(lines.items()):
            side = "theirs" if system in THEIRS else "ours"
            style = {"marker": marks[number % len(marks)], "color": COLORS[side]}
            axes.plot(*zip(*points, strict=True), label=system, linewidth=1, **style)
        axes.set(xscale="log", yscale="log", xlabel="Mbit/s of a link", ylabel="s to the loss")
        rates = sorted({row["mbit"] for row in rows})
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        low, high = axes.get_ylim()
        seconds = [number for number in TICKS_S if low <= number <= high]
        axes.set_yticks(seconds, [f"{number:g}" for number in seconds])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        figure.legend(frameon=False, loc="outside right upper", fontsize=8)
        figure.savefig(path, dpi=150)


def main() -> int:
    """Measure, or draw what was measured."""
    options = _options()
    if options.files:
        rows = [row for file in options.files for row in json.loads(file.read_text())]
        draw(rows, options.picture)
        return 0
    try:
        rows = rehearse(options) if options.emulated else compare(options)
    except LabUnavailable as reason:
        print(reason)
        return 2
    write_json(options.json, rows)
    if options.picture:
        draw(rows, options.picture)
    return 0


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="to draw: what --json has written")
    parser.add_argument("--picture", type=target, metavar="FILE")
    parser.add_argument("--mbit", type=float, default=20.0, help="of each link, each way")
    parser.add_argument("--rtt-ms", type=float, default=100.0)
    parser.add_argument("--systems", nargs="+", help=f"some of: {' '.join(SYSTEMS)}")
    parser.add_argument(
        "--trainer-apart", action="store_true", help="ours: on a host of its own, behind a link"
    )
    parser.add_argument("--patience-s", type=float, default=100.0, help="for one system")
    parser.add_argument("--loss", type=float, default=2.3, help="nats a byte")
    parser.add_argument("--smooth", type=int, default=5, help="steps whose mean is the loss")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=16, help="a step")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--learning-rate", type=float, default=8e-3)
    parser.add_argument("--warmup-steps", type=int, default=5)
    parser.add_argument("--local-steps", type=int, default=10, help="of DiLoCo, to an average")
    parser.add_argument("--data", type=Path, default=STANDARD_LIBRARY, help="text to train on")
    parser.add_argument("--emulated", action="store_true", help="time the steps of large stages")
    parser.add_argument("--emulated-microbatches", type=int, default=32, help="a step")
    parser.add_argument("--emulated-steps", type=int, default=1, help="after the first")
    options = parser.parse_args()
    if options.files and not options.picture:
        parser.error("files are to draw: name the --picture")
    if options.emulated and options.picture:
        parser.error("--picture is of the time to a loss, which --emulated has not")
    known = EMULATED if options.emulated else SYSTEMS
    options.systems = options.systems or list(known)
    if unknown := [name for name in options.systems if name not in known]:
        parser.error(f"--systems: there is no {unknown[0]}, but {', '.join(known)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
