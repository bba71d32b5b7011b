"""The flags of `p2pswarm demo`, and a type for flags that are whole numbers.

Errors:  one line from argparse for a number that is out of range.
"""

import argparse
from pathlib import Path

from p2pswarm.demo.options import Options

STAGES_MAX, REPLICAS_MAX = 8, 16  # processes on one machine
STEPS_MAX = 10**6


class whole:  # noqa: N801 - reads as the type of an argument
    """A whole number from low to high."""

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high

    def __call__(self, text: str) -> int:
        """Read the number; argparse reports the error in one line."""
        number = int(text) if text.isascii() and text.isdigit() else -1
        if not self._low <= number <= self._high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {self._low} to {self._high}"
            )
        return number


def add_demo_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `p2pswarm demo`."""
    base = Options()
    stages, replicas, steps = whole(1, STAGES_MAX), whole(1, REPLICAS_MAX), whole(1, STEPS_MAX)
    parser.add_argument(
        "--stages",
        type=stages,
        default=base.stages,
        metavar="S",
        help="parts of the model; default: %(default)s",
    )
    parser.add_argument(
        "--replicas",
        type=replicas,
        default=base.replicas,
        metavar="R",
        help="servers of each stage; default: %(default)s",
    )
    parser.add_argument(
        "--steps", type=steps, default=base.steps, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--kill-every",
        type=whole(0, STEPS_MAX),
        metavar="STEPS",
        help="kill a server each time after this many steps; 0: never; default: once, half way",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument(
        "--plot",
        type=Path,
        default=base.plot,
        metavar="FILE",
        help="draw the loss here, in the format of the suffix; default: %(default)s",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="text to learn; default: the sources of Python's standard library",
    )
