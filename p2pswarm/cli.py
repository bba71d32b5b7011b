"""The command `p2pswarm`. One machine's node is `python -m p2pswarm.node`.

Errors:  one line on stderr and exit code 2; 1 when the run fails.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from p2pswarm.demo.demo import demo
from p2pswarm.demo.options import Options
from p2pswarm.errors import RunEnded, SwarmError
from p2pswarm.node import OneLineParser

STAGES_MAX, REPLICAS_MAX = 8, 16  # processes on one machine
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _options(argv)
    console = Console()
    try:
        return asyncio.run(_interruptible(options, console))
    except SwarmError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1 if isinstance(error, RunEnded) else 2
    except asyncio.CancelledError:
        return INTERRUPTED


async def _interruptible(options: Options, console: Console) -> int:
    """The demo; the first Ctrl-C ends it in order, the second at once."""
    work = asyncio.current_task()
    assert work is not None
    signals = 0

    def leave() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            console.print("leaving; Ctrl-C again to leave at once")
        work.cancel()  # the second time it interrupts the farewell, and the children are killed

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, leave)
    return await demo(options, console)


def _options(argv: Sequence[str] | None) -> Options:
    parser = OneLineParser(
        prog="p2pswarm",
        description="Train one transformer on any machines. A node is python -m p2pswarm.node.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser(
        "demo",
        help="train a small transformer over several processes on this machine",
        description="Trains a byte-level transformer over several processes on this machine, "
        "kills a server on the way, and draws what was learnt.",
    )
    base = Options()
    show.add_argument("--stages", type=_whole(1, STAGES_MAX), default=base.stages, metavar="S")
    show.add_argument(
        "--replicas", type=_whole(1, REPLICAS_MAX), default=base.replicas, metavar="R"
    )
    show.add_argument("--steps", type=_whole(1, 10**6), default=base.steps, metavar="N")
    show.add_argument(
        "--kill-every",
        type=_whole(0, 10**6),
        metavar="STEPS",
        help="kill a server every so many steps; 0: never; left out: once, half way",
    )
    show.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    show.add_argument(
        "--plot", type=Path, default=base.plot, metavar="FILE", help="default: %(default)s"
    )
    show.add_argument(
        "--data",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="text to learn; left out: the Python standard library's sources",
    )
    options = Options(**vars(parser.parse_args(argv)))
    for path in (options.json, options.plot):
        if path and not path.absolute().parent.is_dir():
            parser.error(f"there is no folder {path.parent} for {path.name}")
    if options.data and not options.data.exists():
        parser.error(f"there is no file or folder {options.data}")
    return options


class _whole:  # noqa: N801 - reads as the type of an argument
    """A whole number from low to high."""

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high

    def __call__(self, text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else -1
        if not self._low <= number <= self._high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {self._low} to {self._high}"
            )
        return number


if __name__ == "__main__":
    sys.exit(main())
