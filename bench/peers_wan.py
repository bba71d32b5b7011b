"""hivemind's tensor stream across the WAN lab, to stand beside `bandwidth_sweep.py --wan`.

    python bench/peers.py --rounds 1      # once: makes .venv-peers
    python bench/peers_wan.py [--rate-mbit 200] [--rtt-ms 100] [--json FILE]

Two peers on two hosts of the lab, 64 MiB of float32 at a time, the way of hivemind's own mixture
of experts, as in `bench/peers_hivemind.py`.
"""

import statistics
import sys

from peers import BENCH, ENVIRONMENT, STREAM_BYTES
from results import command_line, write_json
from wan_lab import Lab, LabUnavailable, add_link_options, link_of
from workers import Worker

PYTHON = ENVIRONMENT / "bin" / "python"


def main() -> int:
    """Measure, print, write."""
    parser = command_line(__doc__)
    add_link_options(parser)
    parser.add_argument("--times", type=int, default=4)
    options = parser.parse_args()
    if not PYTHON.exists():
        print("hivemind's environment is missing: run python bench/peers.py --rounds 1 first")
        return 2
    try:
        with Lab(2, link_of(options)) as lab:
            print(lab.describe())
            rates = measure(lab, options.times)
    except LabUnavailable as reason:
        print(reason)
        return 2
    median = statistics.median(rates)
    each = ", ".join(f"{rate:.0f}" for rate in rates)
    print(f"hivemind: {median:.1f} Mbit/s of payload (each: {each})")
    write_json(options.json, {"mbit_per_s": median, "each": rates})
    return 0


def measure(lab: Lab, times: int) -> list[float]:
    """Mbit/s of each tensor."""
    ends = [
        [*lab.enter(n), PYTHON, BENCH / "peers_hivemind.py", "wan", lab.address(n)] for n in (0, 1)
    ]
    with Worker(ends[0]) as server, Worker([*ends[1], *server.do("address")]) as client:
        taken_s = client.do("stream", bytes_=STREAM_BYTES, times=times)
    return [STREAM_BYTES * 8e-6 / one_s for one_s in taken_s]


if __name__ == "__main__":
    sys.exit(main())
