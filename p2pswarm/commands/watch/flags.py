"""The flags of `p2pswarm watch`.

Errors:  Unusable for flags that do not go together.
"""

import argparse

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.arguments import (
    INVITE_HELP,
    Commands,
    add_bootstrap,
    add_json,
    file_path,
    run_main,
)
from p2pswarm.commands.status.flags import asking_through
from p2pswarm.settings.page_config import AUTO, PageConfig

TEXT = (
    "Shows a run again from the logs of its nodes (train.log, serve.log), faster than it was: in "
    "the terminal and in a browser. Several files are one run, in the order of their clocks. With "
    "--bootstrap it shows a run that goes on elsewhere."
)
SPEED = 60.0  # an hour in a minute
SPEED_MIN, SPEED_MAX = 0.1, 1e6


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "watch", help="show a run, again from its log or from afar", description=TEXT
    )
    parser.set_defaults(main=_run)
    parser.add_argument(
        "files", nargs="*", type=file_path, metavar="FILE", help="a log; its numbered files as well"
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=SPEED,
        metavar="TIMES",
        help=f"so many times as fast as it was; default: {SPEED:g}",
    )
    parser.add_argument(
        "--run",
        default="",
        metavar="ID",
        help="default: that of the first event; with --bootstrap a name, default: the only run",
    )
    parser.add_argument(
        "--page",
        type=_page,
        default=None,
        metavar="HOST:PORT",
        help="where the page for browsers is, or off; default: this machine alone, if it is a "
        "terminal",
    )
    add_bootstrap(parser, "ask the run's trainer through this node of its swarm; repeatable")
    parser.add_argument("--invite", metavar="TEXT", help=INVITE_HELP)
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


def _page(text: str) -> PageConfig:
    try:
        return PageConfig(listen=text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run(flags: argparse.Namespace) -> int:
    distant = bool(flags.bootstrap or flags.invite)
    if distant == bool(flags.files):
        raise Unusable("name the log of a run, or --bootstrap HOST:PORT of its swarm")
    page = flags.page or PageConfig(listen=AUTO)
    if not distant:
        return run_main(
            "commands.watch.watch",
            flags.files,
            flags.run,
            speed=flags.speed,
            page=page,
            as_json=flags.json,
        )
    if flags.json:
        raise Unusable("--json is about a log: of a run elsewhere, p2pswarm status --json tells")
    config = asking_through(flags.bootstrap or (), flags.invite or "")
    return run_main("commands.watch.afar", config, flags.run, page=page)
