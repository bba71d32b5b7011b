"""The command line as a value, and its exit code.

Errors:  one line on stderr; exit code 2 for what the user has to correct, 1 for what a later
         try may bring about.
"""

import argparse
import io
import sys
import time
from collections.abc import Sequence

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.exception_group import cause_of
from p2pswarm.base.exit_codes import FAILED, UNREAD, UNUSABLE
from p2pswarm.base.standard_streams import STDERR
from p2pswarm.base.transient_errors import is_transient
from p2pswarm.base.version import version_text
from p2pswarm.commands import completion, health, node, own_node, verify
from p2pswarm.commands.arguments import NobodyReads, OneLineParser
from p2pswarm.commands.data import flags as data
from p2pswarm.commands.demo import flags as demo
from p2pswarm.commands.doctor import flags as doctor
from p2pswarm.commands.owner import flags as closed_runs
from p2pswarm.commands.plan import flags as plan
from p2pswarm.commands.report import flags as bug_report
from p2pswarm.commands.simulate import flags as simulate
from p2pswarm.commands.status import flags as status
from p2pswarm.commands.watch import flags as watch
from p2pswarm.commands.weights import flags as weights
from p2pswarm.progress.printable import printable

ALL = (
    *(node, own_node, data, status, watch, doctor, health, bug_report, verify, weights, plan),
    *(simulate, closed_runs, demo, completion),
)
"""In the order of `--help`."""
REQUIRED = {
    *("aiohttp", "fsspec", "matplotlib", "numpy", "prometheus_client", "regex", "safetensors"),
    "torch",
}
"""Libraries that every installation has but one without dependencies (docs/install.md)."""


def main(argv: Sequence[str]) -> int:
    """Run the command that the flags name; returns the exit code."""
    begun = argparse.Namespace(begun_s=time.monotonic())
    if sys.platform == "win32" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a pipe has the letters of one country there
    try:
        flags = make_parser().parse_args(argv, begun)
        code: int = flags.main(flags)
    except NobodyReads:
        return UNREAD
    except SwarmError as error:
        return _failed(error)
    except ModuleNotFoundError as error:
        return _lacks(error)
    except ExceptionGroup as group:
        cause = cause_of(group)
        if isinstance(cause, ModuleNotFoundError):
            return _lacks(cause)
        if not isinstance(cause, SwarmError):
            raise
        return _failed(cause)
    return code


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = OneLineParser(
        prog="p2pswarm",
        description="Trains one transformer on any machines you can get.",
        epilog="p2pswarm COMMAND --help explains a command; python -m p2pswarm is the same.",
    )
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for each in ALL:
        each.add(commands)
    return parser


def _lacks(error: ModuleNotFoundError) -> int:
    """Say which library this command needs; an installation for first nodes has few of them."""
    library = (error.name or "").partition(".")[0]
    if library not in REQUIRED:
        raise error
    STDERR.write(f"error: this command needs {library}: pip install {library}\n")
    return UNUSABLE


def _failed(error: SwarmError) -> int:
    STDERR.write(f"error: {printable(str(error))}\n")
    return FAILED if is_transient(error) else UNUSABLE
