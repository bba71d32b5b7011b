"""The command line as a value, and its exit code.

Errors:  one line on stderr; exit code 2 for what the user can correct, 1 for a run that failed.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from p2pswarm.commands import (
    check_model,
    closed_runs,
    demo,
    doctor,
    evaluate,
    explain,
    export,
    generate,
    node,
    plan,
    simulate,
    status,
    verify,
)
from p2pswarm.commands.arguments import Command, OneLineParser
from p2pswarm.errors import RunEnded, SwarmError
from p2pswarm.flow.exception_group import cause_of
from p2pswarm.progress.printable import printable
from p2pswarm.version import VERSION

ALL = (
    node,
    status,
    explain,
    doctor,
    verify,
    check_model,
    generate,
    evaluate,
    export,
    plan,
    simulate,
    closed_runs,
    demo,
)
"""In the order of `--help`."""
FAILED, UNUSABLE = 1, 2


def main(argv: Sequence[str]) -> int:
    """Run the command that the flags name; returns the exit code."""
    begun_s = time.monotonic()
    try:
        return parse(argv).run(begun_s)
    except SwarmError as error:
        return _failed(error)
    except ExceptionGroup as group:
        cause = cause_of(group)
        if not isinstance(cause, SwarmError):
            raise
        return _failed(cause)


def parse(argv: Sequence[str]) -> Command:
    """The command of a command line."""
    flags = make_parser().parse_args(argv)
    command: Command = flags.read(flags)
    return command


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = OneLineParser(
        prog="p2pswarm",
        description="Trains one transformer on any machines you can get.",
        epilog="p2pswarm COMMAND --help explains a command; python -m p2pswarm is the same.",
    )
    parser.add_argument("--version", action="version", version=f"p2pswarm {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for each in ALL:
        each.add(commands)
    return parser


def _failed(error: SwarmError) -> int:
    sys.stderr.write(f"error: {printable(str(error))}\n")
    return FAILED if isinstance(error, RunEnded) else UNUSABLE
