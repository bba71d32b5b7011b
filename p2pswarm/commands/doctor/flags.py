"""`p2pswarm doctor`: how others reach this machine, and what slows training down on it.

Errors:  Unusable for addresses that cannot be used.
"""

import argparse
import os

from p2pswarm.commands.arguments import Commands, add_bootstrap, add_json, file_path, run_main
from p2pswarm.node.stack.addresses import check
from p2pswarm.settings.environment import from_environment
from p2pswarm.settings.node_config import NodeConfig

TEXT = (
    "Finds out whether others can dial this machine, and what slows training down here, and says "
    "what to change. Run it while no node runs here: then it tests the port that a node will have."
)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="what is wrong with this machine's network", description=TEXT
    )
    parser.set_defaults(main=_run)
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


def config_of(flags: argparse.Namespace) -> NodeConfig:
    """The settings of a node that only looks; Unusable for addresses that cannot be used."""
    bootstrap = flags.bootstrap or from_environment(os.environ).get("bootstrap", ())
    config = NodeConfig(
        bootstrap=tuple(bootstrap),
        listen=flags.listen or "",
        identity=flags.identity,
    )
    check(config)
    return config


def _run(flags: argparse.Namespace) -> int:
    return run_main("commands.doctor.doctor", config_of(flags), json=flags.json)
