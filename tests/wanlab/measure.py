"""What a link gives to plain UDP and TCP, measured from inside the hosts.

The yardstick for our own links (`bench/bandwidth_sweep.py --wan`): nothing
sent over TCP can be faster than `tcp_goodput` says.

Units:   seconds, bits per second of payload.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .lab import Lab

PROBE = (sys.executable, "-I", str(Path(__file__).with_name("probe.py")))
WARMUP_S = 4.0  # bbr and cubic at 150 ms have left slow start well before


@dataclass(frozen=True, slots=True)
class Goodput:
    """What arrived, once the connections were at speed."""

    bits_per_s: float
    retransmits: int
    """Segments that TCP sent again, warm-up included."""
    emulator_cpu_share: float
    """Of one processor."""


def round_trips_s(lab: Lab, source: int, to: int, count: int = 50) -> list[float]:
    """Times of `count` small datagrams there and back, in ascending order."""
    with _server(lab, to, "echo") as (port, _):
        argv = [*PROBE, "ping", lab.address(to), str(port), "--count", str(count)]
        done = lab.run(source, argv, stdout=subprocess.PIPE, check=True)
    return sorted(json.loads(done.stdout))


def tcp_goodput(
    lab: Lab,
    source: int,
    to: int,
    *,
    seconds: float = 10.0,
    warmup_s: float = WARMUP_S,
    connections: int = 1,
    congestion: str = "bbr",
) -> Goodput:
    """Send for `seconds` after a warm-up, from one host to another."""
    sink_argv = ("sink", "--connections", str(connections), "--warmup-s", str(warmup_s))
    with _server(lab, to, *sink_argv) as (port, sink):
        argv = [*PROBE, "source", lab.address(to), str(port), "--connections", str(connections)]
        argv += ["--seconds", str(warmup_s + seconds), "--congestion", congestion]
        begin_s, begin_cpu_s = time.monotonic(), lab.emulator_cpu_s()
        done = lab.run(source, argv, stdout=subprocess.PIPE, check=True)
        taken = json.loads(sink.communicate()[0])
        cpu_share = (lab.emulator_cpu_s() - begin_cpu_s) / (time.monotonic() - begin_s)
    return Goodput(
        bits_per_s=taken["bytes"] * 8 / max(taken["seconds"], seconds),
        retransmits=json.loads(done.stdout)["retransmits"],
        emulator_cpu_share=cpu_share,
    )


@contextmanager
def _server(lab: Lab, host: int, *argv: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A probe that prints its port first; killed at the end if it still runs."""
    with lab.popen(host, [*PROBE, *argv], stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(server.stdout.readline()), server
        finally:
            server.kill()
