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
    bare     what as many connections carry on both roads without us: TCP alone, to compare with
    ping     200 Mbit/s, 40 ms: small calls while tensors saturate the road
    stalled  four streams of messages beside one that nobody reads, and without it, in turns

Run it when nothing else runs: the lab itself needs a processor. It takes a bit more than
rows x runs x (settle + seconds): 45 minutes for everything. `--quick` shows that it works.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bandwidth_sweep import ROOT, Worker, steady_rate

sys.path.insert(0, str(ROOT))

from tests.wanlab.lab import Lab, LabUnavailable, Tcp
from tests.wanlab.link import Link

MIB = 1 << 20
TENSOR_BYTES = 8 * MIB
IN_FLIGHT, MANY_IN_FLIGHT = 4, 16
MANY_MBIT = 1000.0
STREAMS = 4
SEND_MEMORY_BYTES = 16 * MIB
END = Path(__file__).with_name("wan_worker.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    unit: str
    promised: float
    at_least: bool
    rate_mbit: float
    rtt_ms: float
    loss: float = 0.0
    connections: int = 0
    """0: as the link chooses."""
    congestion: str = "bbr"

    def kept(self, value: float) -> bool:
        """Whether this value is as good as promised."""
        return value >= self.promised if self.at_least else value <= self.promised


def payload(name: str, promised: float, rate_mbit: float, rtt_ms: float, **more: object) -> Row:
    """A row that says how many Mbit/s of tensors arrive."""
    row = Row(
        name=name,
        what="",
        unit="Mbit/s",
        promised=promised,
        at_least=True,
        rate_mbit=rate_mbit,
        rtt_ms=rtt_ms,
        **more,  # type: ignore[arg-type]
    )
    road = f"{rate_mbit:g} Mbit/s, {rtt_ms:g} ms, loss {row.loss:.1%}, {row.congestion}"
    carried = "TCP alone" if name == "bare" else "tensors"
    return Row(**{**asdict(row), "what": f"{road}: {carried}"})


ROWS = (
    payload("payload", 180, 200, 150),
    payload("payload", 170, 200, 150, loss=0.001),
    payload("payload", 170, 200, 150, loss=0.01),
    payload("cubic", 120, 200, 150, loss=0.001, connections=16, congestion="cubic"),
    payload("bare", 0, 200, 150, loss=0.001, connections=16, congestion="cubic"),
    payload("fast", 1600, 2000, 100),
    payload("bare", 0, 2000, 100, connections=2),
    Row(
        name="ping",
        what="200 Mbit/s, 40 ms, tensors saturate it: small calls, p99",
        unit="ms",
        promised=100,
        at_least=False,
        rate_mbit=200,
        rtt_ms=40,
    ),
    Row(
        name="stalled",
        what="200 Mbit/s, 40 ms: a stalled reader costs four other streams",
        unit="%",
        promised=5,
        at_least=False,
        rate_mbit=200,
        rtt_ms=40,
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement, and how many bulk connections there were at its end."""

    value: float
    connections: int


def tensors(sender: Worker, receiver: Worker, args: argparse.Namespace) -> tuple[float, float]:
    """Mbit/s of tensors once the link has settled, and the p99 of calls meanwhile, in ms."""
    order = {
        "to": receiver.do("address"),
        "bytes_": TENSOR_BYTES,
        "codec": "raw",
        "in_flight": args.in_flight,
    }
    sender.do("send", **order, seconds=args.settle)
    there_s, calls_s = sender.do("send", **order, seconds=args.seconds)
    rate = steady_rate(there_s, args.in_flight) * TENSOR_BYTES * 8e-6
    return rate, calls_s[len(calls_s) * 99 // 100] * 1e3


def stalled(sender: Worker, receiver: Worker, args: argparse.Namespace) -> float:
    """How much less four streams carry beside one that nobody reads, in percent."""
    to, pieces = receiver.do("address"), {False: 0, True: 0}
    sender.do("pieces", to=to, streams=STREAMS, seconds=args.settle / 4, stalled=False)
    for also in (False, True, True, False):
        before = receiver.do("got")
        sender.do("pieces", to=to, streams=STREAMS, seconds=args.seconds / 4, stalled=also)
        pieces[also] += receiver.do("got") - before
    return 100 * (1 - pieces[True] / pieces[False])


def bare(sender: Worker, receiver: Worker, args: argparse.Namespace) -> float:
    """Mbit/s that as many plain TCP connections carry."""
    connections = sender.do("connections_wanted")
    sender.do("bare_send", to=receiver.do("bare_listen"), connections=connections)
    time.sleep(args.settle)
    before, begun_s = receiver.do("bare_got"), time.monotonic()
    time.sleep(args.seconds)
    return (receiver.do("bare_got") - before) * 8e-6 / (time.monotonic() - begun_s)


MEASURES: dict[str, Callable[[Worker, Worker, argparse.Namespace], float]] = {
    "bare": bare,
    "ping": lambda sender, receiver, args: tensors(sender, receiver, args)[1],
    "stalled": stalled,
}


def measure(row: Row, seed: int, args: argparse.Namespace) -> Run:
    """One run of one row, in a new lab."""
    road = Link(rate_bits_per_s=row.rate_mbit * 1e6, delay_s=row.rtt_ms / 2e3, loss=row.loss)
    tcp = Tcp(wmem_max_bytes=SEND_MEMORY_BYTES)
    args.in_flight = MANY_IN_FLIGHT if row.rate_mbit > MANY_MBIT else IN_FLIGHT
    how = MEASURES.get(row.name, lambda *ends: tensors(*ends)[0])
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(2, road, tcp=tcp, seed=seed))
        sender, receiver = (
            stack.enter_context(
                Worker(lab.enter(at), (lab.address(at), row.connections, row.congestion), END)
            )
            for at in (0, 1)
        )
        value = how(sender, receiver, args)
        return Run(value, sender.do("connections"))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="of each row; the median counts")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured in each run")
    parser.add_argument("--settle", type=float, default=40.0, help="seconds before that")
    parser.add_argument("--rows", nargs="+", choices=sorted({row.name for row in ROWS}))
    parser.add_argument("--quick", action="store_true", help="one run of a few seconds")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.quick:
        args.runs, args.seconds, args.settle = 1, 4.0, 4.0
    rows = [row for row in ROWS if args.rows is None or row.name in args.rows]
    table = []
    print(f"{'':64} {'promised':>9} {'median':>9}         connections  each")
    for row in rows:
        try:
            runs = [measure(row, seed, args) for seed in range(args.runs)]
        except LabUnavailable as why:
            print(why, file=sys.stderr)
            return 2
        median = statistics.median(run.value for run in runs)
        kept = row.kept(median)
        counts = "/".join(str(run.connections) for run in runs)
        each = ", ".join(f"{run.value:.1f}" for run in runs)
        line = f"{row.what:64} {row.promised:9g} {median:9.1f} {row.unit:7}"
        print(f"{line} {counts:12} {each}{'' if kept else '   MISSED'}", flush=True)
        table.append(
            {**asdict(row), "median": median, "kept": kept, "runs": list(map(asdict, runs))}
        )
    if args.json:
        args.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0 if all(line["kept"] for line in table) else 1


if __name__ == "__main__":
    sys.exit(main())
