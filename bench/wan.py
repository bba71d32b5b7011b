"""What tensors and calls get of a far, lossy road: what was promised beside what was reached.

    python bench/wan.py [--runs 5] [--seconds 20] [--settle 40] [--rows WORD ...] [--json FILE]

Two processes in two hosts of the WAN lab (tests/wanlab), new ones for each run; the median of the
runs is compared. Tensors of 8 MiB of float32, uncompressed, four under way, or sixteen at 2 Gbit/s:
a tensor takes two round trips beside its bytes, so four would be 1.1 Gbit/s. The rate is that of
their bytes after `--settle` seconds, in which the link finds out how many connections it needs
(docs/bulk.md). Sockets may have 16 MB to send and 32 MB to receive.

    payload  200 Mbit/s, 150 ms round trip, loss 0, 0.1 and 1 % each way
    cubic    the same without BBR, with sixteen connections, at 0.1 %
    fast     2 Gbit/s, 100 ms, no loss
    ping     200 Mbit/s, 40 ms: small calls while tensors saturate the road

Run it when nothing else runs: the lab itself needs a processor. It takes a bit more than
rows x runs x (settle + seconds): half an hour for everything. `--quick` shows that it works.
"""

import argparse
import statistics
import sys
from dataclasses import asdict, dataclass

from bandwidth_sweep import end, steady_rate
from results import command_line, write_json
from wan_lab import Lab, LabUnavailable, Link, Tcp
from workers import Worker

MIB = 1 << 20
TENSOR_BYTES = 8 * MIB
CHUNK_BYTES = MIB
IN_FLIGHT, MANY_IN_FLIGHT = 4, 16
MANY_MBIT = 1000.0
SEND_MEMORY_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    promised: float
    rate_mbit: float
    rtt_ms: float
    loss: float = 0.0
    connections: int = 0
    """0: as the link chooses."""
    congestion: str = "bbr"

    @property
    def calls(self) -> bool:
        """Whether small calls are measured, in ms at most, and not tensors, in Mbit/s at least."""
        return self.name == "ping"

    @property
    def what(self) -> str:
        """The row for people."""
        road = f"{self.rate_mbit:g} Mbit/s, {self.rtt_ms:g} ms"
        if self.calls:
            return f"{road}, tensors saturate it: small calls, p99"
        return f"{road}, loss {self.loss:.1%}, {self.congestion}: tensors"

    def kept(self, value: float) -> bool:
        """Whether this value is as good as promised."""
        return value <= self.promised if self.calls else value >= self.promised


ROWS = (
    Row(name="payload", promised=180, rate_mbit=200, rtt_ms=150),
    Row(name="payload", promised=170, rate_mbit=200, rtt_ms=150, loss=0.001),
    Row(name="payload", promised=170, rate_mbit=200, rtt_ms=150, loss=0.01),
    Row(
        name="cubic",
        promised=120,
        rate_mbit=200,
        rtt_ms=150,
        loss=0.001,
        connections=16,
        congestion="cubic",
    ),
    Row(name="fast", promised=1600, rate_mbit=2000, rtt_ms=100),
    Row(name="ping", promised=100, rate_mbit=200, rtt_ms=40),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement, and how many bulk connections there were at its end."""

    value: float
    connections: int


def measure(row: Row, seed: int, args: argparse.Namespace) -> Run:
    """One run of one row, in a new lab."""
    road = Link(rate_bits_per_s=row.rate_mbit * 1e6, delay_s=row.rtt_ms / 2e3, loss=row.loss)
    in_flight = MANY_IN_FLIGHT if row.rate_mbit > MANY_MBIT else IN_FLIGHT
    with Lab(2, road, tcp=Tcp(wmem_max_bytes=SEND_MEMORY_BYTES), seed=seed) as lab:
        ends = [
            end(lab.enter(n), row.connections, CHUNK_BYTES, lab.address(n), row.congestion)
            for n in (0, 1)
        ]
        with Worker(ends[0]) as sender, Worker(ends[1]) as receiver:
            order = {"bytes_": TENSOR_BYTES, "codec": "raw", "in_flight": in_flight}
            order["to"] = receiver.do("address")
            sender.do("send", **order, seconds=args.settle)
            there_s, calls_s = sender.do("send", **order, seconds=args.seconds)
            connections = sender.do("connections")
    rate_mbit = steady_rate(there_s, in_flight) * TENSOR_BYTES * 8e-6
    p99_ms = calls_s[len(calls_s) * 99 // 100] * 1e3
    return Run(p99_ms if row.calls else rate_mbit, connections)


def main() -> int:
    """Measure, print, write."""
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each row; the median counts")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured in each run")
    parser.add_argument("--settle", type=float, default=40.0, help="seconds before that")
    parser.add_argument("--rows", nargs="+", choices=sorted({row.name for row in ROWS}))
    parser.add_argument("--quick", action="store_true", help="one run of a few seconds")
    args = parser.parse_args()
    if args.quick:
        args.runs, args.seconds, args.settle = 1, 4.0, 4.0
    table = []
    print(f"{'':64} {'promised':>9} {'median':>9}         connections  each")
    for row in (row for row in ROWS if args.rows is None or row.name in args.rows):
        try:
            runs = [measure(row, seed, args) for seed in range(args.runs)]
        except LabUnavailable as why:
            print(why, file=sys.stderr)
            return 2
        median = statistics.median(run.value for run in runs)
        kept, unit = row.kept(median), "ms" if row.calls else "Mbit/s"
        counts = "/".join(str(run.connections) for run in runs)
        each = ", ".join(f"{run.value:.1f}" for run in runs)
        line = f"{row.what:64} {row.promised:9g} {median:9.1f} {unit:7}"
        print(f"{line} {counts:12} {each}{'' if kept else '   MISSED'}", flush=True)
        more = {"what": row.what, "unit": unit, "at_least": not row.calls, "median": median}
        table.append({**asdict(row), **more, "kept": kept, "runs": list(map(asdict, runs))})
    write_json(args.json, table)
    return 0 if all(line["kept"] for line in table) else 1


if __name__ == "__main__":
    sys.exit(main())
