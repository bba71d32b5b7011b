"""`p2pswarm report`: an archive that can be attached to a bug report, without a secret in it.

Errors:  Unusable for a file that cannot be read, or an archive that cannot be written.
"""

import argparse
from pathlib import Path

from p2pswarm.commands.arguments import Commands, add_bootstrap, file_path, run_main

TEXT = (
    "Writes an archive that can be attached to a bug report: settings, the newest events and lines "
    "of the log, what doctor finds, and versions. It has no key, no invitation, no text, no path "
    "and no name of yours: of settings it has numbers and named choices, and of texts the words of "
    "this program. Unpack it and read it before you send it."
)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report", help="an archive for a bug report, without a secret in it", description=TEXT
    )
    parser.set_defaults(main=_run)
    parser.add_argument("--config", type=file_path, metavar="FILE", help="the node's settings")
    parser.add_argument(
        "--events",
        type=file_path,
        metavar="FILE",
        help="events of the run: its log of events, or what --set train.progress=json printed",
    )
    parser.add_argument(
        "--log", type=file_path, metavar="FILE", help="what the node wrote to its terminal"
    )
    parser.add_argument(
        "--stacks", type=file_path, metavar="FILE", help="stacks of the node's process"
    )
    add_bootstrap(parser, "a node of the swarm, for what doctor finds; repeatable")
    parser.add_argument(
        "--no-doctor", action="store_true", help="do not look at the network, for some 20 s"
    )
    parser.add_argument(
        "--with-machine-name", action="store_true", help="let the archive have this machine's name"
    )
    parser.add_argument(
        "--out",
        type=file_path,
        default=Path("p2pswarm-report.zip"),
        metavar="FILE",
        help="where it is written; default: p2pswarm-report.zip, or with a number if it is there",
    )


def _run(flags: argparse.Namespace) -> int:
    return run_main("commands.report.report", flags)
