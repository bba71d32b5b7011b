"""hivemind's tensor stream across the WAN lab, to stand beside `bandwidth_sweep.py --wan`.

    python bench/peers.py --rounds 1      # once: makes .venv-peers
    python bench/peers_wan.py [--rate-mbit 200] [--rtt-ms 100] [--json FILE]

Two peers on two hosts of the lab, 64 MiB of float32 at a time, the way of hivemind's own mixture
of experts, as in `bench/peers_hivemind.py`.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.wanlab.lab import Lab, LabUnavailable  # noqa: E402 - found by the line above
from tests.wanlab.link import Link  # noqa: E402

PYTHON = ROOT / ".venv-peers" / "bin" / "python"
END = ROOT / "bench" / "peers_hivemind_wan.py"
PATIENCE_S = 300.0


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate-mbit", type=float, default=200.0)
    parser.add_argument("--rtt-ms", type=float, default=100.0)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not PYTHON.exists():
        print("hivemind's environment is missing: run python bench/peers.py --rounds 1 first")
        return 2
    link = Link(rate_bits_per_s=options.rate_mbit * 1e6, delay_s=options.rtt_ms / 2e3)
    try:
        with Lab(2, link) as lab:
            print(lab.describe())
            rates = measure(lab, options.times)
    except LabUnavailable as reason:
        print(reason)
        return 2
    median = statistics.median(rates)
    each = ", ".join(f"{rate:.0f}" for rate in rates)
    print(f"hivemind: {median:.1f} Mbit/s of payload (each: {each})")
    if options.json:
        options.json.write_text(json.dumps({"mbit_per_s": median, "each": rates}) + "\n")
    return 0


def measure(lab: Lab, times: int) -> list[float]:
    """Mbit/s of each tensor."""
    ends = [[*lab.enter(host), str(PYTHON), str(END), lab.address(host)] for host in (0, 1)]
    with subprocess.Popen(
        [*ends[0], "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()
        told = subprocess.run(
            [*ends[1], str(times), *address],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            timeout=PATIENCE_S,
        )
        server.kill()
    return [float(line) for line in told.stdout.split()]


if __name__ == "__main__":
    sys.exit(main())
