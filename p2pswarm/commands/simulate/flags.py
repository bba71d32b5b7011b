"""`p2pswarm simulate`: a day of machines that come and go, in virtual time."""

import argparse

from p2pswarm.base.files import require_file
from p2pswarm.commands.arguments import SEED_MAX, Commands, add_set, file_path, run_main, whole
from p2pswarm.sim.traces import trace_of

TEXT = (
    "Plays a run on your machines in virtual time, with the rules that ship: routing, fencing, "
    "averaging, moves between stages. --trace lets machines come and go as clouds have let them. "
    "It tells the share of what the machines could do at best, and draws it."
)
HOURS_MAX, DETAIL_MAX = 24 * 31, 10**7


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "simulate",
        help="play a day of machines that come and go, before you rent any",
        description=TEXT,
        epilog="docs/simulation.md says what is simulated, what is not, and how well it foretells.",
    )
    parser.set_defaults(main=_run)
    parser.add_argument(
        "config", type=file_path, metavar="FILE", help="the run's settings, in TOML"
    )
    add_set(parser)
    parser.add_argument(
        "--devices", type=file_path, required=True, metavar="FILE", help="your machines, in TOML"
    )
    parser.add_argument(
        "--trace",
        default="",
        metavar="NAME",
        help="aws_g4dn, aws_p3, gcp_v100, or a JSON file; default: all machines stay",
    )
    parser.add_argument(
        "--hours",
        type=lambda text: _between(text, 0.01, HOURS_MAX),
        default=24.0,
        metavar="H",
        help="default: 24",
    )
    parser.add_argument(
        "--network", default="", metavar="NAME", help="aws, skyplane or gcp12, for the regions"
    )
    parser.add_argument("--seed", type=whole(0, SEED_MAX), default=1, metavar="N")
    parser.add_argument(
        "--noticed",
        type=lambda text: _between(text, 0.0, 1.0),
        default=0.5,
        metavar="SHARE",
        help="of the machines that are taken so many are told beforehand, if the trace's cloud "
        "tells any; default: 0.5",
    )
    parser.add_argument(
        "--detail",
        type=whole(100, DETAIL_MAX),
        default=20_000,
        metavar="N",
        help="simulate about so many microbatches, each of which stands for several of the run's, "
        "but more where steps would last over ten minutes; default: 20000",
    )
    parser.add_argument("--json", type=file_path, metavar="OUT", help="write the figures here")
    parser.add_argument(
        "--plot", type=file_path, metavar="OUT", help="draw throughput and members of stages here"
    )


def _run(flags: argparse.Namespace) -> int:
    """Look at the files first: what plays them loads torch."""
    require_file(flags.config)
    require_file(flags.devices)
    if flags.trace:
        trace_of(flags.trace)
    return run_main("commands.simulate.simulate", flags)


def _between(text: str, low: float, high: float) -> float:
    """A number; argparse reports the error in one line."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
    return value
