"""How fast tensors go from one process into another: size x codec x connections.

    python bench/bandwidth_sweep.py [--quick] [--wan] [--json FILE] [--plot FILE]

The whole road is measured: encode, announce, grant, encrypt, TCP, decrypt, decode, and
the word that the tensor is there. Rates are of the tensor's own bytes, so a codec that
sends fewer may pass the wire's speed; CPU seconds are those of both processes together.

With --wan the two run in hosts of the WAN lab (tests/wanlab), 200 Mbit/s and 100 ms unless
told otherwise; `Mbit/s` is then what the link carried as payload, and `call` what a small
call takes meanwhile.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import command_line, write_json
from rich.console import Console
from rich.table import Table
from workers import Worker

WORKER = Path(__file__).with_name("bandwidth_worker.py")
MIB = 1 << 20
SIZES = (64 * 1024, MIB, 8 * MIB, 64 * MIB)
FAR_COLUMNS = ("payload_mbit_per_s", "call_p50_ms", "call_p99_ms")
CODECS = ("raw", "bf16", "int8", "planes-zstd")
CONNECTIONS = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement."""

    bytes: int
    codec: str
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How each cell is measured."""

    seconds: float
    warm_up_s: float
    in_flight: int
    chunk_bytes: int


@contextmanager
def loopback() -> Iterator[list[tuple[Sequence[str], str]]]:
    """Sender and receiver: what starts them there, and their address."""
    yield [((), "127.0.0.1"), ((), "127.0.0.1")]


@contextmanager
def wide_area(args: argparse.Namespace) -> Iterator[list[tuple[Sequence[str], str]]]:
    """The same in two hosts far apart."""
    from wan_lab import Lab, LabUnavailable, link_of  # noqa: PLC0415  Linux alone has it

    try:
        with Lab(2, link_of(args)) as lab:
            print(lab.describe(), file=sys.stderr)
            yield [(lab.enter(host), lab.address(host)) for host in (0, 1)]
    except LabUnavailable as why:
        raise SystemExit(f"bandwidth_sweep: {why}") from why


def measure(sender: Worker, receiver: Worker, cell: Cell, plan: Plan) -> dict[str, Any]:
    """One cell: warm up, then send for a while."""
    order = {
        "to": receiver.do("address"),
        "bytes_": cell.bytes,
        "codec": cell.codec,
        "in_flight": plan.in_flight,
    }
    sender.do("send", **order, seconds=plan.warm_up_s)
    cpu_s = sender.do("cpu_s") + receiver.do("cpu_s")
    carried = sender.do("carried")
    there_s, calls_s = sender.do("send", **order, seconds=plan.seconds)
    cpu_s = sender.do("cpu_s") + receiver.do("cpu_s") - cpu_s
    carried = (sender.do("carried") - carried) / len(there_s)
    per_s = steady_rate(there_s, plan.in_flight)
    return {
        "bytes": cell.bytes,
        "codec": cell.codec,
        "connections": cell.connections,
        "mb_per_s": per_s * cell.bytes / 1e6,
        "cpu_s_per_gb": cpu_s / (len(there_s) * cell.bytes / 1e9),
        "payload_mbit_per_s": per_s * carried * 8e-6,
        "call_p50_ms": calls_s[len(calls_s) // 2] * 1e3,
        "call_p99_ms": calls_s[len(calls_s) * 99 // 100] * 1e3,
    }


def steady_rate(there_s: list[float], in_flight: int) -> float:
    """Tensors a second, once the first few that leave together are there."""
    if len(there_s) <= 2 * in_flight:
        return len(there_s) / there_s[-1]
    first, last = in_flight - 1, len(there_s) - 1
    return (last - first) / (there_s[last] - there_s[first])


def end(enter: Sequence[str], *settings: int | str) -> list[str | Path]:
    """The command of a worker; `enter`: what starts it in its host."""
    return [*enter, sys.executable, WORKER, json.dumps(settings)]


def sweep(args: argparse.Namespace, plan: Plan) -> list[dict[str, Any]]:
    """Every cell; the processes are new for each number of connections."""
    rows = []
    with wide_area(args) if args.wan else loopback() as hosts:
        for connections in args.connections:
            with ExitStack() as stack:
                sender, receiver = (
                    stack.enter_context(Worker(end(enter, connections, plan.chunk_bytes, address)))
                    for enter, address in hosts
                )
                for size, codec in itertools.product(args.bytes, args.codecs):
                    cell = Cell(bytes=size, codec=codec, connections=connections)
                    rows.append(measure(sender, receiver, cell, plan))
                    print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def show(rows: list[dict[str, Any]], *, wan: bool) -> None:
    """The table."""
    table = Table(title="tensors from process to process, encrypted")
    far = ("Mbit/s", "call p50, ms", "p99, ms") if wan else ()
    for column in ("size", "codec", "connections", "MB/s", "CPU s/GB", *far):
        table.add_column(column, justify="left" if column == "codec" else "right")
    for row in rows:
        size = row["bytes"]
        table.add_row(
            f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB",
            row["codec"],
            str(row["connections"]),
            f"{row['mb_per_s']:,.1f}",
            f"{row['cpu_s_per_gb']:.2f}",
            *(f"{row[key]:.1f}" for key in FAR_COLUMNS if wan),
        )
    Console().print(table)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """A line for each codec and number of connections."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  only where a picture is asked for

    figure, axes = plt.subplots(figsize=(7, 4))
    lines: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["codec"], row["connections"]), []).append(row)
    for (codec, connections), points in lines.items():
        points.sort(key=lambda row: row["bytes"])
        axes.plot(
            [row["bytes"] for row in points],
            [row["mb_per_s"] for row in points],
            marker="o",
            label=f"{codec}, {connections}",
        )
    axes.set(xscale="log", xlabel="tensor, bytes", ylabel="MB/s", ylim=(0, None))
    axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
    axes.legend(title="codec, connections", fontsize="small", ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def options() -> argparse.Namespace:
    """The command line, with what --quick and --wan make of it."""
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cells, under a minute")
    parser.add_argument("--bytes", type=int, nargs="+", help="sizes of tensors")
    parser.add_argument("--codecs", nargs="+")
    parser.add_argument("--connections", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, help="of each cell")
    parser.add_argument("--in-flight", type=int, help="tensors at once")
    parser.add_argument("--chunk-kib", type=int, default=1024)
    parser.add_argument("--wan", action="store_true", help="in two hosts of the WAN lab")
    parser.add_argument("--rate-mbit", type=float, default=200.0)
    parser.add_argument("--rtt-ms", type=float, default=100.0)
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets, each way")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    args = parser.parse_args()
    small = args.quick or args.wan
    args.bytes = args.bytes or ((8 * MIB,) if args.wan else SIZES[1::2] if small else SIZES)
    args.codecs = args.codecs or (("raw",) if args.wan else CODECS)
    args.connections = args.connections or ((1, 4) if small else CONNECTIONS)
    args.seconds = args.seconds or (15.0 if args.wan else 0.5 if args.quick else 3.0)
    args.in_flight = args.in_flight or (4 if args.wan else 2)
    return args


def main() -> int:
    """Measure, print, write."""
    args = options()
    plan = Plan(
        seconds=args.seconds,
        warm_up_s=4.0 if args.wan else 0.2,
        in_flight=args.in_flight,
        chunk_bytes=args.chunk_kib * 1024,
    )
    rows = sweep(args, plan)
    show(rows, wan=args.wan)
    if args.plot:
        plot(rows, args.plot)
    keys = ("bytes", "codec", "connections", "mb_per_s", "cpu_s_per_gb")
    write_json(args.json, [{key: row[key] for key in keys} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
