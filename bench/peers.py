"""p2pswarm beside hivemind 1.1.12, in one run on one machine.

    python bench/peers.py [--rounds 6] [--json FILE]

Both sides do the same, in turns, each peer in a process of its own:
    stream      a 64 MiB float32 tensor, encrypted, until the other side has it as a tensor
    rpc         a call with 64 bytes and the same back
    dht_store   one of 16 peers publishes 64 bytes
    dht_get     another of them finds it, asking others: keys that it holds itself are left out
    start       from constructing a node to listening and being in that DHT, imports excluded

hivemind lives in .venv-peers, made by the first run (pip, a few minutes). Medians of all
turns; a ratio above 1 means that we are better.
"""

import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from results import command_line, write_json
from workers import Worker

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
ENVIRONMENT = ROOT / ".venv-peers"
WANTED = (
    "hivemind==1.1.12",
    "uvloop<0.22",  # 1.1.12 sets a loop policy that uvloop 0.22 refuses
    # Our blocks import them: slow_links_peers.py trains them there.
    *("safetensors", "zstandard", "regex"),
)
PROBE = (
    "import os, sys, regex, safetensors, zstandard, hivemind;"
    "from hivemind import hivemind_cli as c;"
    "p = os.path.join(os.path.dirname(c.__file__), 'p2pd');"
    "sys.exit(hivemind.__version__ != '1.1.12' or not os.access(p, os.X_OK))"
)
INSTALL_S = 1800.0
PEERS = 16
STREAM_BYTES = 64 << 20
SMALL_BYTES = 64
VALUE = "v" * SMALL_BYTES
STREAMS, CALLS, KEYS, STARTS = 4, 500, 40, 2  # in a turn
WRITER, READER = 3, 7  # peers of the DHT
UNITS = {"stream": "MB/s", "rpc": "us", "dht_store": "ms", "dht_get": "ms", "start": "ms"}
PER_S = {"us": 1e6, "ms": 1e3}

Times = dict[str, dict[str, list[float]]]


class NoPeer(Exception):
    """hivemind cannot be had here; the message is one line."""


def hivemind_python() -> Path:
    """The interpreter of the environment with hivemind in it, made if need be."""
    python = ENVIRONMENT / "bin" / "python"
    if python.exists() and subprocess.run([python, "-c", PROBE], check=False).returncode == 0:
        return python
    print(f"making {ENVIRONMENT.name} with {' '.join(WANTED)} ...", file=sys.stderr)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    try:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run(
            [*pip, "-c", str(ROOT / "constraints.txt"), *WANTED],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or str(error)).strip().splitlines()
        why = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1])
        raise NoPeer(f"hivemind cannot be installed: {why}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPeer(f"hivemind cannot be installed: {error}") from error
    if subprocess.run([python, "-c", PROBE], check=False).returncode:
        raise NoPeer(f"{ENVIRONMENT.name}: hivemind 1.1.12 came without its daemon p2pd")
    return python


@contextmanager
def crew() -> Iterator[Any]:
    """Starts workers; all of them are asked to leave at the end, whatever happened."""
    with ExitStack() as stack:

        def hire(python: Path, script: str, *args: str) -> Worker:
            return stack.enter_context(Worker([python, BENCH / script, *args]))

        yield hire


def links(python: Path, rounds: int) -> Times:
    """Stream and small calls, between two processes a side."""
    times: Times = {"stream": {}, "rpc": {}}
    with crew() as hire:
        clients = {}
        for side, where, script in sides(python):
            server = hire(where, script, "link")
            clients[side] = hire(where, script, "link", *server.do("address"))
        for turn in range(rounds + 1):
            for side, client in clients.items():
                streams = client.do("stream", bytes_=STREAM_BYTES, times=STREAMS)
                calls = client.do("echo", bytes_=SMALL_BYTES, times=CALLS)
                if turn:  # the first one dials, and warms up
                    times["stream"].setdefault(side, []).extend(streams)
                    times["rpc"].setdefault(side, []).extend(calls)
            show(f"links: turn {turn} of {rounds}")
    return times


def directories(python: Path, rounds: int) -> Times:
    """Store, get and start, in a DHT of 16 processes a side."""
    times: Times = {"dht_store": {}, "dht_get": {}, "start": {}}
    with crew() as hire:
        show(f"starting {PEERS} peers a side")
        theirs = hire(python, "peers_hivemind.py", "dht", str(PEERS))
        ours = [hire(Path(sys.executable), "peers_ours.py", "dht")]
        seed = ours[0].do("address")
        while len(ours) < PEERS:
            ours.append(hire(Path(sys.executable), "peers_ours.py", "dht", *seed))
        for turn in range(rounds + 1):
            keys = [f"{turn}-{i}" for i in range(KEYS)]
            job = {"keys": keys, "value": VALUE}
            turns = {
                "ours": {
                    "dht_store": ours[WRITER].do("store", **job),
                    "dht_get": ours[READER].do("get", **job),
                    "start": [ours[0].do("start") for _ in range(STARTS)],
                },
                "peer": {
                    "dht_store": theirs.do("store", peer=WRITER, **job),
                    "dht_get": theirs.do("get", peer=READER, **job),
                    "start": [theirs.do("start") for _ in range(STARTS)],
                },
            }
            for side, taken in turns.items():
                for what, taken_s in taken.items():
                    if turn:
                        times[what].setdefault(side, []).extend(taken_s)
            show(f"DHT: turn {turn} of {rounds}")
    return times


def sides(python: Path) -> list[tuple[str, Path, str]]:
    return [
        ("ours", Path(sys.executable), "peers_ours.py"),
        ("peer", python, "peers_hivemind.py"),
    ]


def show(progress: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{progress:40}", end="", file=sys.stderr, flush=True)


def compared(times: Times) -> dict[str, dict[str, Any]]:
    """Medians and their ratio."""
    table = {}
    for what, unit in UNITS.items():
        medians_s = {side: statistics.median(taken) for side, taken in times[what].items()}
        ratio = medians_s["peer"] / medians_s["ours"]
        if what == "stream":
            values = {side: STREAM_BYTES / 1e6 / s for side, s in medians_s.items()}
        else:
            values = {side: s * PER_S[unit] for side, s in medians_s.items()}
        table[what] = {**values, "unit": unit, "ratio": ratio}
    return table


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="turns a side")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds: 1 or more")
    try:
        python = hivemind_python()
    except NoPeer as error:
        print(error, file=sys.stderr)
        return 2

    load_before = os.getloadavg()[0]
    times = links(python, args.rounds) | directories(python, args.rounds)
    table = compared(times)

    show("")
    print(f"\n{'':10} {'p2pswarm':>12} {'hivemind':>12} {'':5} {'better by':>9}   samples a side")
    for what, row in table.items():
        counts = "/".join(str(len(times[what][side])) for side in ("ours", "peer"))
        print(f"{what:10} {row['ours']:12,.1f} {row['peer']:12,.1f} {row['unit']:5}", end=" ")
        print(f"{row['ratio']:8.1f}x   {counts}")
    print(f"medians of {args.rounds} turns; {os.cpu_count()} processors,", end=" ")
    print(f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    write_json(args.json, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
