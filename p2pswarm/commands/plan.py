"""`p2pswarm plan`: which device should serve which stage.

Units:   seconds.
Errors:  Unusable if a solver is missing.
"""

import argparse
import importlib
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.commands.arguments import SEED_MAX, Commands, whole
from p2pswarm.errors import Unusable

TEXT = (
    "Finds out which device should serve which stage, so that an iteration takes least, and says "
    "how good its answer is at least. FILE.json has latency_s and gbps, a row of numbers for each "
    "device, then stages, pipelines, gradient_gbit, activation_gbit; access_gbps may bound each "
    "device's own line. The cost is that of Decentralized Training of Foundation Models in "
    "Heterogeneous Environments (Yuan et al., 2022)."
)


@dataclass(frozen=True, slots=True)
class PlanCommand:
    """Find out which device should serve which stage."""

    matrix: Path
    """The devices' links and the task, in JSON."""
    seconds: float
    """How long to search."""
    seed: int
    json: Path | None
    """Where the plan is written for scripts."""

    def run(self, begun_s: float) -> int:
        """Search with solvers that only this command needs."""
        del begun_s
        try:
            planning = importlib.import_module("p2pswarm.roles.planning")
        except ModuleNotFoundError as error:
            raise Unusable(f"{error.name} is missing: pip install 'p2pswarm[plan]'") from error
        code: int = planning.main(self.matrix, self.seconds, self.seed, self.json)
        return code


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plan", help="which device should serve which stage", description=TEXT
    )
    parser.set_defaults(read=_read)
    parser.add_argument(
        "--objective",
        choices=["dtfm"],
        default="dtfm",
        help="what an iteration costs; dtfm: averaging, then a pipeline of which no part overlaps",
    )
    parser.add_argument(
        "--matrix", type=Path, required=True, metavar="FILE.json", help="the links and the task"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="how long to search; default: 60"
    )
    parser.add_argument(
        "--seed", type=whole(0, SEED_MAX), default=0, metavar="N", help="of its chance; default: 0"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the plan here, for scripts")


def _read(flags: argparse.Namespace) -> PlanCommand:
    return PlanCommand(flags.matrix, flags.seconds, flags.seed, flags.json)
