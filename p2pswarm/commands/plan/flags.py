"""`p2pswarm plan`: which device should serve which stage.

Errors:  Unusable if a solver is missing, or flags contradict each other.
"""

import argparse
import importlib

from p2pswarm.base.errors import Unusable, missing_extra
from p2pswarm.base.files import require_file
from p2pswarm.commands.arguments import INVITE_HELP, SEED_MAX, Commands, file_path, whole
from p2pswarm.commands.node import print_example
from p2pswarm.commands.status.flags import asking_through

TEXT = (
    "Finds out which device should serve which stage, so that a step takes least, and says how far "
    "from the best possible it is at most. FILE.toml names the devices and their links (p2pswarm "
    "plan --example prints one); the answer has the cut of the layers, the codec, what limits the "
    "run, and what one more device of each kind would bring. With --objective dtfm --matrix "
    "FILE.json the cost is that of Decentralized Training of Foundation Models in Heterogeneous "
    "Environments (Yuan et al., 2022): FILE.json has latency_s and gbps, a row of numbers for each "
    "device, then stages, pipelines, gradient_gbit, activation_gbit; access_gbps may bound each "
    "device's own line. The first search on a machine compiles before it begins, for up to a "
    "minute; what was compiled is kept. With --from HOST:PORT the devices are the servers of a "
    "living swarm, as they have measured themselves, and the run is theirs."
)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plan", help="which device should serve which stage", description=TEXT
    )
    parser.set_defaults(main=_run)
    parser.add_argument(
        "devices", type=file_path, nargs="?", metavar="FILE.toml", help="the devices"
    )
    parser.add_argument(
        "--objective",
        choices=["pipelined", "dtfm"],
        help="what a step costs; pipelined: transfers, computing and microbatches overlap; dtfm: "
        "averaging, then a pipeline of which no part overlaps; default: what the file is for",
    )
    parser.add_argument(
        "--matrix", type=file_path, metavar="FILE.json", help="the links and the task, for dtfm"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="how long to search; default: 60"
    )
    parser.add_argument(
        "--seed", type=whole(0, SEED_MAX), default=0, metavar="N", help="of its chance; default: 0"
    )
    parser.add_argument(
        "--json", type=file_path, metavar="OUT", help="write the plan here, for scripts"
    )
    parser.add_argument(
        "--out",
        type=file_path,
        metavar="FOLDER",
        help="write run.toml, NAME.toml and plan.png here",
    )
    parser.add_argument(
        "--from",
        dest="through",
        action="append",
        metavar="HOST:PORT",
        help="in place of a file: what the servers of a living swarm have measured, asked through "
        "this node of it; may be given several times",
    )
    parser.add_argument("--invite", metavar="TEXT", help=f"with --from or without: {INVITE_HELP}")
    parser.add_argument(
        "--run", default="", metavar="NAME", help="of the swarm; default: the only one"
    )
    parser.add_argument("--example", action="store_true", help="print a commented file of devices")


def _run(flags: argparse.Namespace) -> int:
    if flags.example:
        return print_example("devices")
    effort = flags.seconds, flags.seed, flags.json
    if flags.through or flags.invite:
        if flags.devices or flags.matrix or flags.objective == "dtfm":
            raise Unusable("--from plans a living swarm: leave out the file, --matrix and dtfm")
        config = asking_through(flags.through or (), flags.invite or "")
        return _plan("swarm", config, flags.run, *effort, flags.out)
    if flags.run:
        raise Unusable("--run names a run of a living swarm: give --from HOST:PORT, too")
    dtfm = flags.objective == "dtfm" or (flags.objective is None and flags.matrix is not None)
    if dtfm and flags.matrix is None:
        raise Unusable("--objective dtfm needs links and a task: --matrix FILE.json")
    if not dtfm and flags.matrix is not None:
        raise Unusable("--matrix is for --objective dtfm: name a file of devices instead")
    if not dtfm and flags.devices is None:
        raise Unusable(
            "no file of devices: p2pswarm plan --example > devices.toml, then p2pswarm plan "
            "devices.toml; or --from HOST:PORT for a living swarm"
        )
    if dtfm and flags.out is not None:
        raise Unusable("--out is for a file of devices: --json OUT writes this plan")
    require_file(flags.matrix if dtfm else flags.devices)  # before torch is loaded
    if dtfm:
        return _plan("dtfm", flags.matrix, *effort)
    return _plan("devices", flags.devices, *effort, flags.out)


def _plan(module: str, *arguments: object) -> int:
    """Search with solvers that only this command needs; Unusable if one is missing."""
    try:
        planning = importlib.import_module(f"p2pswarm.commands.plan.{module}")
    except ModuleNotFoundError as error:
        raise missing_extra(f"the search of a plan needs {error.name}", "plan") from error
    code: int = planning.main(*arguments)
    return code
