"""`p2pswarm doctor`: how others reach this machine, and what slows training down on it.

Errors:  Unusable for addresses that cannot be used.
"""

import argparse
import importlib
from dataclasses import dataclass

from p2pswarm.commands.arguments import Commands, add_bootstrap, add_json, file_path
from p2pswarm.node.stack.addresses import check
from p2pswarm.settings.config import NodeConfig

TEXT = (
    "Finds out whether others can dial this machine, and what slows training down here, and says "
    "what to change. Run it while no node runs here: then it tests the port that a node will have."
)


@dataclass(frozen=True, slots=True)
class DoctorCommand:
    """Find out how others reach this machine, and what slows it down."""

    config: NodeConfig
    json: bool
    """Print one JSON object instead of lines."""

    def run(self, begun_s: float) -> int:
        """Find out, and print it."""
        del begun_s
        doctor = importlib.import_module("p2pswarm.commands.doctor.doctor")
        code: int = doctor.main(self.config, json=self.json)
        return code


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="what is wrong with this machine's network", description=TEXT
    )
    parser.set_defaults(read=_read)
    text = "a node that tries to dial this machine, with its swarm; may be given several times"
    add_bootstrap(parser, text)
    parser.add_argument(
        "--listen", metavar="[HOST]:PORT", help="what to test; default: as of p2pswarm node"
    )
    parser.add_argument(
        "--identity",
        type=file_path,
        metavar="FILE",
        help="the node's key file: then peers that have banned it tell so",
    )
    add_json(parser)


def _read(flags: argparse.Namespace) -> DoctorCommand:
    config = NodeConfig(
        bootstrap=tuple(flags.bootstrap or ()),
        listen=flags.listen or "",
        identity=flags.identity,
    )
    check(config)
    return DoctorCommand(config, flags.json)
