"""The flags of `p2pswarm watch`."""

import argparse

from p2pswarm.commands.arguments import Commands, add_json, file_path, run_main

TEXT = (
    "Shows a run again from the logs of its nodes (train.log, serve.log), faster than it was. "
    "Several files are one run, in the order of their clocks."
)
SPEED = 60.0  # an hour in a minute
SPEED_MIN, SPEED_MAX = 0.1, 1e6


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("watch", help="show a run again from its log", description=TEXT)
    parser.set_defaults(main=_run)
    parser.add_argument(
        "files", nargs="+", type=file_path, metavar="FILE", help="a log; its numbered files as well"
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=SPEED,
        metavar="TIMES",
        help=f"so many times as fast as it was; default: {SPEED:g}",
    )
    parser.add_argument(
        "--run", default="", metavar="ID", help="default: the run of the first event"
    )
    add_json(parser, "one line of JSON about the end of the log, at once, for scripts")


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not SPEED_MIN <= speed <= SPEED_MAX:  # false for NaN
        limits = f"from {SPEED_MIN:g} to {SPEED_MAX:,.0f}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {limits}")
    return speed


def _run(flags: argparse.Namespace) -> int:
    return run_main(
        "commands.watch.watch", flags.files, flags.run, speed=flags.speed, as_json=flags.json
    )
