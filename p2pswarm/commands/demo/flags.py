"""`p2pswarm demo`: a small training run, with all its processes on this machine.

Errors:  Unusable for files that cannot be written.
"""

import argparse
import dataclasses
from collections.abc import Callable
from typing import NoReturn

from p2pswarm.base.files import check_target
from p2pswarm.commands.arguments import Commands, file_path, run_main, say, whole
from p2pswarm.commands.demo.options import UNEVEN_REPLICAS, UNEVEN_STEPS, Options

STAGES_MAX, REPLICAS_MAX = 8, 16  # processes on one machine
STEPS_MAX = 10**6
TEXT = (
    "Trains a byte-level transformer with several processes on this machine, kills a server on "
    "the way, and draws what was learnt."
)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo", help="train a small transformer on this machine alone", description=TEXT
    )
    parser.set_defaults(main=lambda flags: _run(options_of(flags, parser.error)))
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
        metavar="R",
        help=f"servers of each stage; default: {base.replicas}, or {UNEVEN_REPLICAS} if uneven",
    )
    parser.add_argument(
        "--steps",
        type=steps,
        metavar="N",
        help=f"default: {base.steps}, or {UNEVEN_STEPS} if uneven",
    )
    parser.add_argument(
        "--uneven",
        action="store_true",
        help="rehearse on slow and fast machines: who moves, and what it brings; nothing is learnt",
    )
    parser.add_argument(
        "--kill-every",
        type=whole(0, STEPS_MAX),
        metavar="STEPS",
        help="kill a server each time after this many steps; 0: never; default: once, half way",
    )
    _add_files(parser, base)


def _add_files(parser: argparse.ArgumentParser, base: Options) -> None:
    parser.add_argument("--json", type=file_path, metavar="FILE", help="write the figures here")
    parser.add_argument(
        "--plot",
        type=file_path,
        default=base.plot,
        metavar="FILE",
        help="draw the loss here, in the format of the suffix; default: %(default)s",
    )
    parser.add_argument(
        "--data",
        type=file_path,
        metavar="FILE_OR_FOLDER",
        help="text to learn; default: the sources of Python's standard library",
    )


def _run(options: Options) -> int:
    """Train, with a line before the first library is loaded."""
    for path in (options.json, options.plot):
        if path:
            check_target(path)
    say("p2pswarm demo: starting")
    return run_main("commands.demo.demo", options)


def options_of(flags: argparse.Namespace, error: Callable[[str], NoReturn]) -> Options:
    """The options of the flags; `error` ends the process with one line."""
    if flags.uneven:
        flags.steps = flags.steps or UNEVEN_STEPS
        flags.replicas = flags.replicas or UNEVEN_REPLICAS
        flags.kill_every = flags.kill_every or 0
        if flags.stages < 2 or flags.replicas < UNEVEN_REPLICAS:  # noqa: PLR2004
            least = f"2 stages and {UNEVEN_REPLICAS} replicas"
            error(f"--uneven needs {least} at least: else there is nobody to spare")
    given = {field.name: getattr(flags, field.name) for field in dataclasses.fields(Options)}
    options = Options(**{name: value for name, value in given.items() if value is not None})
    for path in (options.json, options.plot):
        if path and not path.absolute().parent.is_dir():
            error(f"there is no folder {path.parent} for {path.name}")
    if options.data and not options.data.exists():
        error(f"there is no file or folder {options.data}")
    return options
