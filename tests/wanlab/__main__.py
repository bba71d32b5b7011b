"""The lab by hand; `tests/wanlab/__init__.py` tells how."""

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path

from .lab import Lab, LabUnavailable, Tcp
from .link import Link
from .measure import round_trips_s, tcp_goodput

CHECK_LOSSES = (0.0, 0.001, 0.01)


def main() -> int:
    """Open a lab as the command line says and do what it asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.wanlab", description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate-mbit", type=float, default=200.0, help="of each link; 0: no limit")
    parser.add_argument("--rtt-ms", type=float, default=100.0, help="both ways together")
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets, each way")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="at most, each way")
    parser.add_argument("--queue-kb", type=float, help="default: rate times RTT")
    parser.add_argument("--congestion", default=Tcp().congestion_control)
    parser.add_argument("--wmem-mb", type=int, default=Tcp().wmem_max_bytes >> 20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0, help="check: of each TCP row")
    parser.add_argument("--json", type=Path, help="check: write the table here")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="CMD... | shell HOST | check")
    options = parser.parse_args()
    tcp = Tcp(congestion_control=options.congestion, wmem_max_bytes=options.wmem_mb << 20)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        link = Link(
            rate_bits_per_s=options.rate_mbit * 1e6 or None,
            delay_s=options.rtt_ms / 2e3,
            queue_bytes=None if options.queue_kb is None else round(options.queue_kb * 1e3),
            loss=options.loss,
            jitter_s=options.jitter_ms / 1e3,
        )
        with Lab(options.hosts, link, tcp=tcp, seed=options.seed) as lab:
            print(lab.describe(), file=sys.stderr, flush=True)
            if command == ["check"]:
                return check(lab, options.seconds, options.json)
            if command[:1] == ["shell"]:
                return run_all(lab, [f"{command[1]}:", os.environ.get("SHELL", "/bin/sh")])
            return run_all(lab, command) if command else wait(lab)
    except (LabUnavailable, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 2


def run_all(lab: Lab, words: list[str]) -> int:
    """Run commands separated by +, each in its host; the last one's exit code."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "+":
            commands.append([])
        else:
            commands[-1].append(word)
    programs = []
    for command in commands:
        host, argv = 0, command
        if command and command[0].endswith(":") and command[0][:-1].isdigit():
            host, argv = int(command[0][:-1]), command[1:]
        if not argv:
            raise ValueError("a command is missing: -- 1: iperf3 -s + 0: iperf3 -c {1}")
        for i in range(lab.hosts):
            argv = [word.replace(f"{{{i}}}", lab.address(i)) for word in argv]
        programs.append(lab.popen(host, argv))
    while True:
        try:
            return programs[-1].wait()
        except KeyboardInterrupt:  # the terminal has told the programs too: theirs to obey
            continue


def wait(lab: Lab) -> int:
    """Keep the lab open until Ctrl-C."""
    for i in range(lab.hosts):
        print(f"host {i}: {' '.join(lab.enter(i))} bash")
    print("Ctrl-C ends the lab.", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        return 0
    return 1


def check(lab: Lab, seconds: float, to_file: Path | None) -> int:
    """Does the lab do what it says? What is set beside what is measured."""
    link = lab.link(0, 1)
    lab.set_link(replace(link, loss=0.0))
    trips_s = round_trips_s(lab, 0, 1)
    rtt_ms = {"set": 2e3 * link.delay_s, "least": 1e3 * trips_s[0]}
    rtt_ms |= {"median": 1e3 * trips_s[len(trips_s) // 2], "most": 1e3 * trips_s[-1]}
    print("round trip, ms: " + "  ".join(f"{name} {ms:.2f}" for name, ms in rtt_ms.items()))

    print(f"{'tcp':6} {'loss':>6} {'Mbit/s':>8} {'repeated':>9} {'emulator':>9}")
    rows = []
    for loss in CHECK_LOSSES:
        lab.set_link(replace(link, loss=loss), source=0, to=1)
        for congestion in ("bbr", "cubic"):
            got = tcp_goodput(lab, 0, 1, seconds=seconds, congestion=congestion)
            rows.append({"congestion": congestion, "loss": loss, **asdict(got)})
            print(
                f"{congestion:6} {loss:6.2%} {got.bits_per_s / 1e6:8.1f} {got.retransmits:9}"
                f" {got.emulator_cpu_share:9.1%}",
                flush=True,
            )
    if to_file is not None:
        to_file.write_text(json.dumps({"link": str(link), "rtt_ms": rtt_ms, "tcp": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
