"""The WAN lab of `tests/wanlab` for benches: hosts with the kernel's own TCP, and their links."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.wanlab.lab import HOSTS_MAX, Lab, LabUnavailable, Tcp  # noqa: E402 - found above
from tests.wanlab.link import FRAME_OVERHEAD_BYTES, Link  # noqa: E402

__all__ = [
    "FRAME_OVERHEAD_BYTES",
    "HOSTS_MAX",
    "Lab",
    "LabUnavailable",
    "Link",
    "Tcp",
    "add_link_options",
    "carried_bytes",
    "link_of",
]


def add_link_options(parser: argparse.ArgumentParser, rtt_ms: float = 100.0) -> None:
    """Add what `link_of` reads."""
    parser.add_argument("--rate-mbit", type=float, default=200.0, help="of each link")
    parser.add_argument("--rtt-ms", type=float, default=rtt_ms)
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets, each way")


def link_of(options: argparse.Namespace) -> Link:
    """Return the link that the options describe."""
    return Link(
        rate_bits_per_s=options.rate_mbit * 1e6, delay_s=options.rtt_ms / 2e3, loss=options.loss
    )


def carried_bytes(lab: Lab, counts: Callable[[tuple[int, int]], bool] = lambda _: True) -> int:
    """The bytes that links of a lab have carried so far; `counts`: which, by their ends."""
    return sum(count.wire_bytes for road, count in lab.counts().items() if counts(road))
